"""What belongs to a run: its specs, events, attempts, metrics and logs."""

from collections.abc import Iterator, Sequence

from stoker.calls.base import Calls
from stoker.errors import Document
from stoker.events import Event
from stoker.stream import watch


class DocumentCalls(Calls):
    def spec(self, run_id: int) -> Document:
        """`{request, spec, provenance, applied, memory}` of a run."""
        return self._transport.json("GET", f"/runs/{run_id}/spec")

    def events(
        self,
        run_id: int,
        *,
        kind: str | None = None,
        limit: int = 100,
        after: int | str = 0,
        wait_seconds: float | None = None,
    ) -> Document:
        """Events after a number, of one kind or all; `wait_seconds` waits for one where there is
        none yet.
        """
        asked = {"kind": kind, "limit": limit, "after": after}
        return self._get(f"/runs/{run_id}/events", asked, wait_seconds)

    def watch(
        self, run_id: int, *, after: int | None = None, patience_seconds: float | None = None
    ) -> Iterator[Event]:
        """Stream events until the run is over; a lost connection resumes after the last event.

        An event of the kind `connection_lost`, which no service sends, tells of that as it begins.
        Raises ServiceUnreachable when no connection could be made for `patience_seconds`, 60 unless
        told.
        """
        return watch(self._transport, run_id, after, patience_seconds)

    def issues(self, run_id: int) -> list[Document]:
        """What the guard found in a run that it let pass: warnings and accepted risks."""
        return [event["data"] for event in self.every(self.events, run_id, kind="issue")]

    def attempts(self, run_id: int, *, limit: int = 50, after: str | None = None) -> Document:
        return self._get(f"/runs/{run_id}/attempts", {"limit": limit, "after": after})

    def metrics(
        self,
        run_id: int,
        *,
        names: Sequence[str] = (),
        max_points: int | None = None,
        lineage: bool = False,
    ) -> Document:
        """`{series: {name: [[step, unix seconds, value], …]}}`, at most `max_points` of each.

        `lineage`: with the curves of the parents before.
        """
        return self._get(f"/runs/{run_id}/metrics", _curves(names, max_points, lineage))

    def metrics_csv(
        self,
        run_id: int,
        *,
        names: Sequence[str] = (),
        max_points: int | None = None,
        lineage: bool = False,
    ) -> str:
        """The same as CSV, with all points unless told."""
        params = {"format": "csv", **_curves(names, max_points, lineage)}
        return self._transport.send("GET", f"/runs/{run_id}/metrics", params=params).text

    def logs(
        self,
        run_id: int,
        *,
        attempt: int | None = None,
        after: int = 0,
        wait_seconds: float | None = None,
    ) -> Document:
        """Log text after an offset; `wait_seconds` waits for more when there is none yet."""
        return self._get(f"/runs/{run_id}/logs", {"attempt": attempt, "after": after}, wait_seconds)


def _curves(names: Sequence[str], max_points: int | None, lineage: bool) -> Document:
    return {
        "names": ",".join(names) or None,
        "max_points": max_points,
        "lineage": "true" if lineage else None,
    }
