"""Who calls: a bearer token that the database knows, unless the installation asks for none."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from app.api.deps import ServicesDep, services_of
from app.errors import StokerError, Unauthorized
from app.service.services import Services
from app.store.records import TokenRecord

bearer = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="The token lies in the file `token` of the service's home.",
)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]


def caller(services: ServicesDep, credentials: Credentials) -> TokenRecord | None:
    """The token that was sent; None where none is asked for. Unauthorized.

    It is looked for each time, so that a revoked token opens nothing from then on.
    """
    if services.settings.auth == "none":
        return None
    if credentials is None:
        raise Unauthorized(
            "Send the header `Authorization: Bearer TOKEN`; the token lies in the file "
            "`token` of the service's home, and `stoker token create` makes another."
        )
    record = services.store.tokens.verify(credentials.credentials)
    if record is None:
        raise Unauthorized(
            "The token is not known: it may be revoked, or of another installation. `stoker token "
            "create NAME`, on the service's machine, makes another."
        )
    return record


async def is_trusted(request: Request) -> bool:
    """Of a call that is open to all: whether it may be told what only holders of a token may."""
    services: Services = await services_of(request)
    credentials = await bearer(request)
    try:
        await run_in_threadpool(caller, services, credentials)
    except StokerError:
        return False
    return True


Caller = Annotated[TokenRecord | None, Depends(caller)]
IsTrusted = Annotated[bool, Depends(is_trusted)]
