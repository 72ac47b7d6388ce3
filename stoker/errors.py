"""What a call can end with instead of an answer.

ClientError
├── ServiceUnreachable    no answer came
└── Problem               the service answered with problem+json
"""

from collections.abc import Mapping
from typing import Any

Document = dict[str, Any]


class ClientError(Exception):
    """A call that did not succeed; the text is a sentence for a person."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class ServiceUnreachable(ClientError):
    """No answer: the service is not running, or not at this address."""


class Problem(ClientError):
    """The service refused: `status`, `code`, `detail`, `issues`, `allowed_actions`."""

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        super().__init__(str(document.get("detail") or document.get("title") or f"HTTP {status}"))
        self.status = status
        self.code = str(document.get("code", "http_error"))
        self.title = str(document.get("title", ""))
        self.issues: list[Document] = list(document.get("issues", []))
        self.allowed_actions: list[str] = list(document.get("allowed_actions", []))
        self.document = dict(document)
