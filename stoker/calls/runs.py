"""Runs: create, plan, list, change, act on them, restart them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from stoker.calls.base import Calls, Which
from stoker.errors import Document

if TYPE_CHECKING:
    from stoker.models import StateName, Status

From = Which | Literal["scratch"] | int


class RunCalls(Calls):
    def submit(
        self,
        request: Mapping[str, Any],
        *,
        wait_seconds: float | None = None,
        idempotency_key: str | None = None,
    ) -> Document:
        """Create a run; `wait_seconds` waits for a dataset that is still being inspected."""
        return self._transport.json(
            "POST",
            "/runs",
            body=request,
            wait_seconds=wait_seconds,
            headers={"Idempotency-Key": idempotency_key},
        )

    def plan(self, request: Mapping[str, Any], *, probe_seconds: float | None = None) -> Document:
        """What a submission would become: spec, provenance, issues, estimate; creates nothing.

        `probe_seconds` has a worker measure one real step, and waits for it at most so long.
        """
        params = {"dry_run": "true", "probe": None if probe_seconds is None else "true"}
        return self._transport.json(
            "POST", "/runs", body=request, params=params, wait_seconds=probe_seconds
        )

    def runs(
        self,
        *,
        limit: int = 50,
        after: str | None = None,
        state: "StateName | None" = None,
        status: "Status | Sequence[Status] | None" = None,
        recipe: str | None = None,
        dataset: str | None = None,
        label: str | None = None,
        q: str | None = None,
        parent_id: int | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
        created_by: str | None = None,
    ) -> Document:
        """So many runs, newest first, as one page, also where the service gives them in several.

        `status`: one, or several of which any will do; `label` is `key=value`, or `key` for any
        value; `q` a part of the name or the notes. Times are RFC 3339, with their zone;
        `created_by` is the name of a token.
        """
        filters = {
            "state": state,
            "status": status,
            "recipe": recipe,
            "dataset": dataset,
            "label": label,
            "q": q,
            "parent_id": parent_id,
            "created_after": created_after,
            "created_before": created_before,
            "created_by": created_by,
        }
        rows: list[Document] = []
        while True:
            page = self._get("/runs", {"limit": limit - len(rows), "after": after, **filters})
            rows += page["data"]
            after = page["next_cursor"]
            if after is None or len(rows) >= limit:
                return {"data": rows, "next_cursor": after}

    def run(self, run_id: int) -> Document:
        return self._transport.json("GET", f"/runs/{run_id}")

    def update(
        self, run_id: int, changes: Mapping[str, Any], *, version: int | None = None
    ) -> Document:
        """Change name, notes, labels or priority; Problem (412) unless it is at that `version`."""
        return self._transport.json(
            "PATCH", f"/runs/{run_id}", body=changes, headers=_if_match(version)
        )

    def move_in_queue(
        self,
        run_id: int,
        *,
        to: Literal["first", "last"] | None = None,
        before: int | None = None,
        after: int | None = None,
        version: int | None = None,
    ) -> Document:
        """To an end of the queue, or before or after another run, whose priority it takes over."""
        body = {"to": to, "before": before, "after": after}
        return self._transport.json(
            "POST",
            f"/runs/{run_id}/move",
            body={name: value for name, value in body.items() if value is not None},
            headers=_if_match(version),
        )

    def delete(self, run_id: int, *, version: int | None = None) -> None:
        self._transport.send("DELETE", f"/runs/{run_id}", headers=_if_match(version))

    def act(
        self,
        run_id: int,
        action: Literal["stop", "kill", "pause", "resume"],
        *,
        wait_seconds: float | None = None,
        version: int | None = None,
        lose_progress: bool = False,
    ) -> Document:
        """Ask for an action; `wait_seconds` answers when it is done, or when they are over.
        `lose_progress`: pause also a script that has saved nothing to go on from.
        """
        return self._transport.json(
            "POST",
            f"/runs/{run_id}/{action}",
            params={"lose_progress": True} if lose_progress else {},
            wait_seconds=wait_seconds,
            headers=_if_match(version),
        )

    def restart(
        self,
        run_id: int,
        *,
        from_: From | None = None,
        patch: Mapping[str, Any] | None = None,
        patch_ops: Sequence[Mapping[str, Any]] | None = None,
        patch_from: Literal["diagnosis"] | None = None,
        force: bool = False,
        wait_seconds: float | None = None,
        version: int | None = None,
        idempotency_key: str | None = None,
    ) -> Document:
        """A new run that goes on from this one; its `carry` says what starts anew."""
        return self._transport.json(
            "POST",
            f"/runs/{run_id}/restart",
            body=_restart_body(from_, patch, patch_ops, patch_from, force=force),
            wait_seconds=wait_seconds,
            headers={"Idempotency-Key": idempotency_key, **_if_match(version)},
        )

    def plan_restart(
        self,
        run_id: int,
        *,
        from_: From | None = None,
        patch: Mapping[str, Any] | None = None,
        patch_ops: Sequence[Mapping[str, Any]] | None = None,
        patch_from: Literal["diagnosis"] | None = None,
        version: int | None = None,
    ) -> Document:
        """What a restart would become, as `plan`, with its `carry`; the run trains on."""
        return self._transport.json(
            "POST",
            f"/runs/{run_id}/restart",
            body=_restart_body(from_, patch, patch_ops, patch_from),
            params={"dry_run": "true"},
            headers=_if_match(version),
        )

    def bulk(
        self,
        action: Literal["stop", "kill", "pause", "resume", "delete"],
        selection: Mapping[str, Any],
    ) -> Document:
        """One action on many runs: `{"ids": [...]}`, `{"filter": {...}}` or `{"all": True}`.

        A result per id; `has_more` when more matched than were handled at once.
        """
        return self._transport.json("POST", f"/runs/bulk/{action}", body=selection)


def _restart_body(
    from_: From | None,
    patch: Mapping[str, Any] | None,
    patch_ops: Sequence[Mapping[str, Any]] | None,
    patch_from: str | None,
    *,
    force: bool = False,
) -> Document:
    body = {
        "from": from_,
        "patch": patch,
        "patch_ops": patch_ops,
        "patch_from": patch_from,
        "force": force or None,
    }
    return {name: value for name, value in body.items() if value is not None}


def _if_match(version: int | None) -> dict[str, str | None]:
    return {"If-Match": None if version is None else f'"{version}"'}
