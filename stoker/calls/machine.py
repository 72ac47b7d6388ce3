"""Datasets, what specs may name, the workers and how the service is."""

from collections.abc import Callable
from urllib.parse import quote

from stoker.calls.base import Calls
from stoker.errors import ClientError, Document, Problem


class MachineCalls(Calls):
    def register_dataset(
        self, name: str, path: str, *, wait_seconds: float | None = None
    ) -> Document:
        """Have a file under DATA_ROOT inspected; `wait_seconds` waits for the outcome."""
        return self._transport.json(
            "POST",
            "/datasets",
            body={"name": name, "path": path},
            wait_seconds=wait_seconds,
        )

    def datasets(self, *, limit: int = 50, after: str | None = None) -> Document:
        return self._get("/datasets", {"limit": limit, "after": after})

    def dataset(self, name: str, *, wait_seconds: float | None = None) -> Document:
        """`wait_seconds` waits for the outcome of an inspection."""
        return self._get(f"/datasets/{quote(name, safe='')}", {}, wait_seconds)

    def forget_dataset(self, name: str) -> None:
        """Delete the entry, never the file; Problem (409) while a run's record names it."""
        self._transport.send("DELETE", f"/datasets/{quote(name, safe='')}")

    def recipes(self) -> Document:
        """All recipes, each with the JSON Schema of its parameters."""
        return self._transport.json("GET", "/recipes")

    def presets(self) -> Document:
        """`{data, broken}`: presets, and the files of presets that cannot be used."""
        return self._transport.json("GET", "/presets")

    def rules(self) -> Document:
        """`{data, before_rules, by_construction, to_come}`: what the guard looks for."""
        return self._transport.json("GET", "/rules")

    def workers(
        self, *, include_ended: bool = False, limit: int = 50, after: str | None = None
    ) -> Document:
        """Those that live, newest first; `include_ended`: also those that ended or were lost."""
        ended = "true" if include_ended else None
        return self._get("/workers", {"limit": limit, "after": after, "all": ended})

    def queue(self, *, limit: int = 50, after: str | None = None) -> Document:
        """The runs that wait, in the order in which they will be claimed."""
        return self._get("/queue", {"limit": limit, "after": after})

    def version(self) -> Document:
        return self._transport.json("GET", "/version")

    def health(self) -> Document:
        return self._transport.json("GET", "/healthz")

    def readiness(self) -> Document:
        """Whether database, migrations, workers and artifacts are well; Problem (503) if not."""
        return self._transport.json("GET", "/readyz")

    def service_metrics(self) -> str:
        """What Prometheus reads of the API."""
        return self._transport.send("GET", "/metrics").text

    def ready(self) -> bool:
        """Whether database, migrations, workers and artifacts are all well; False also without an
        answer.
        """
        return _answers(self.readiness)

    def lacks_only_artifacts(self) -> bool:
        """Whether all is well but for the artifact root, which no worker finds at the moment."""
        try:
            self.readiness()
        except Problem as problem:
            checks = problem.document.get("checks") or {}
            return [name for name, said in checks.items() if said != "ok"] == ["artifacts"]
        except ClientError:
            return False
        return False

    def alive(self) -> bool:
        """Whether an API answers at all, however it is."""
        return _answers(self.health)


def _answers(call: Callable[[], Document]) -> bool:
    try:
        call()
    except ClientError:
        return False
    return True
