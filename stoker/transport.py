"""How a call is made: JSON both ways, and every failure as a ClientError."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from stoker.address import Address, is_host
from stoker.errors import ClientError, Document, Problem, ServiceUnreachable

# A waiting call is given this much longer than it asked the service to wait.
MARGIN_SECONDS = 30.0


class Transport:
    """One connection pool to the service."""

    def __init__(self, address: Address, timeout_seconds: float) -> None:
        self.url = address.url
        headers = {} if address.token is None else {"Authorization": f"Bearer {address.token}"}
        # A proxy from the environment is for the outside world, not for the box's own service.
        try:
            self._http = httpx.Client(
                base_url=address.url, headers=headers, timeout=timeout_seconds, trust_env=False
            )
        except httpx.InvalidURL as error:
            raise ServiceUnreachable(f"{address.url!r} is not an address: {error}.") from None
        host = self._http.base_url.host
        if host and not is_host(host):  # else looking it up raises UnicodeError
            self._http.close()
            raise ServiceUnreachable(
                f"{address.url!r} is not an address: {host!r} is no valid host name."
            )

    def close(self) -> None:
        self._http.close()

    def json(self, method: str, path: str, **options: Any) -> Document:
        """The answer's document; options as for `send`."""
        response = self.send(method, path, **options)
        try:
            document: Document = response.json()
        except ValueError:
            raise problem_of(response) from None
        return document

    def send(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        wait_seconds: float | None = None,
    ) -> httpx.Response:
        """One call; what is None in params and headers is left out. Raises Problem."""
        sent = {name: value for name, value in (headers or {}).items() if value is not None}
        content = None if body is None else encode(body)
        if content is not None:
            sent["Content-Type"] = "application/json"
        query = {**(params or {}), "wait": wait_seconds}
        try:
            response = self._http.request(
                method,
                path,
                content=content,
                params={name: value for name, value in query.items() if value is not None},
                headers=sent,
                timeout=(
                    httpx.USE_CLIENT_DEFAULT
                    if wait_seconds is None
                    else wait_seconds + MARGIN_SECONDS
                ),
            )
        except httpx.TransportError as error:
            raise self.unreachable(error) from None
        if not response.is_success:
            raise problem_of(response)
        return response

    @contextmanager
    def stream(
        self,
        path: str,
        headers: Mapping[str, str],
        silence_seconds: float,
        params: Mapping[str, str] | None = None,
    ) -> Iterator[httpx.Response]:
        """An answer that is read as it comes; raises Problem, and httpx.TransportError."""
        timeout = httpx.Timeout(10.0, read=silence_seconds)
        with self._http.stream(
            "GET", path, headers=headers, params=params, timeout=timeout
        ) as response:
            if not response.is_success:
                response.read()
                raise problem_of(response)
            yield response

    def unreachable(self, error: httpx.TransportError) -> ServiceUnreachable:
        """The sentence for a call that got no answer."""
        return ServiceUnreachable(
            f"The service at {self.url} does not answer ({error or type(error).__name__}). "
            "Is it running? `stoker up` starts it, `stoker doctor` says what is wrong."
        )


def encode(document: Mapping[str, Any]) -> bytes:
    """A document as JSON; raises ClientError for what JSON cannot say (NaN, infinity)."""
    try:
        return json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError) as error:
        raise ClientError(f"This cannot be sent as JSON: {error}.") from None


def problem_of(response: httpx.Response) -> Problem:
    """The problem in an answer, also when another program gave it."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        document = {
            "detail": f"{response.url} answered {response.status_code} with something that is "
            "not Stoker's; is another program using this port?"
        }
    return Problem(response.status_code, document)
