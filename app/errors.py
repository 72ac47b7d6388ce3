"""The exception tree: every error a user can meet, each with its stable code and HTTP status.

StokerError
├── InvalidRequest (422)      SpecRejected (422, carries issues) · PayloadTooLarge (413)
├── NotFound (404)            Unauthorized (401) · Forbidden (403)
├── Conflict (409)            ActionNotAllowed (409) · DatasetNotReady (409)
│                             OtherService (409)
├── PreconditionFailed (412)  NotAvailableYet (422)
├── LeaseLost                 an agent's write came after its lease had ended
└── Unavailable (503)         database or worker out of reach
    ├── Locked                somebody else holds the row
    └── FileLocked            somebody else holds the whole SQLite file
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class StokerError(Exception):
    """An error with a sentence for a person: what happened, why it matters, what to do now."""

    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"
    status: ClassVar[int] = 500

    def __init__(self, detail: str, *, code: str | None = None, **extensions: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.problem_code = code or self.code
        self.extensions: Mapping[str, Any] = extensions


class InvalidRequest(StokerError):
    code, title, status = "invalid_request", "The request is not valid", 422


class SpecRejected(InvalidRequest):
    """A spec that would be wrong or slow; `issues` holds `app.spec.issue.Issue` as JSON."""

    code, title = "spec_rejected", "The run spec was refused"

    def __init__(self, detail: str, issues: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(detail, issues=list(issues))


class PayloadTooLarge(InvalidRequest):
    code, title, status = "payload_too_large", "The body is too large", 413


class NotAvailableYet(InvalidRequest):
    code, title = "not_available_yet", "This is not available yet"


class Unauthorized(StokerError):
    code, title, status = "unauthorized", "A valid token is needed", 401


class Forbidden(StokerError):
    code, title, status = "forbidden", "This is not allowed", 403


class NotFound(StokerError):
    code, title, status = "not_found", "There is no such thing", 404


class Conflict(StokerError):
    code, title, status = "conflict", "The request conflicts with the current state", 409


class ActionNotAllowed(Conflict):
    """An action that the run's state does not allow; carries `allowed_actions`."""

    code, title = "action_not_allowed", "The run's state does not allow this"


class DatasetNotReady(Conflict):
    code, title = "dataset_not_ready", "The dataset is not ready"


class OtherService(Conflict):
    """STOKER_URL names a service, and the worker of this home belongs to another one."""

    code, title = "other_service", "The worker here belongs to another service"


class PreconditionFailed(StokerError):
    code, title, status = "precondition_failed", "The run changed meanwhile", 412


class Unavailable(StokerError):
    code, title, status = "unavailable", "A part of the service is out of reach", 503


class Locked(Unavailable):
    """The database answers, but another transaction did not let go of a row in time."""


class FileLocked(Unavailable):
    """Another transaction did not let go of the SQLite file in time; nothing else is wrong."""


class LeaseLost(StokerError):
    """The write was refused because another owner has the run; the caller must stop its trainer."""

    code, title, status = "lease_lost", "The lease on this run has ended", 409
