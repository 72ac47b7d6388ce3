"""What belongs to a run: its specs, events, log, metrics and attempts."""

from collections.abc import Iterator
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from app.api.deps import Cursor, Limit, Position, QueryText, RunId, ServicesDep, Wait
from app.api.openapi import problems
from app.api.serializers import attempt_document
from app.api.sse import stream, wait_for_news
from app.api.strict import StrictRoute
from app.errors import InvalidRequest, NotFound
from app.lifecycle import TERMINAL
from app.service.feeds import EventFeed, LogFeed
from app.store.engine.cursor import cursor_of, page_of
from app.store.records import MetricSeries
from stoker.models.base import LARGEST_ID, Page, rfc3339
from stoker.models.records import Attempt, Event, EventKind, EventPage, LogPiece, Series
from stoker.models.runs import RunDocuments

router = APIRouter(tags=["run documents"], route_class=StrictRoute)

DEFAULT_POINTS = 1000
EVENT_STREAM = "text/event-stream"
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", description="A stream goes on after this id."),
]
Kind = Annotated[EventKind | None, Query(description="Only events of this kind.")]
Attempts = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Only this attempt.")]
STREAM_EXAMPLE = (
    'retry: 1000\n\nid: 1\nevent: state\ndata: {"from":null,"to":"queued"}\n\n'
    'event: end\ndata: {"state":"succeeded","reason":"completed","message":null}\n\n'
)
FOLLOWED = {
    200: {"content": {EVENT_STREAM: {"schema": {"type": "string"}, "example": STREAM_EXAMPLE}}},
    **problems(InvalidRequest, NotFound),
}


def _wants_stream(request: Request) -> bool:
    return EVENT_STREAM in request.headers.get("accept", "").lower()


def _start(after: int, last_event_id: str | None) -> int:
    """Where a stream begins; a browser that reconnects sends the id of the last event it got."""
    if last_event_id is None:
        return after
    if not last_event_id.isascii() or not last_event_id.isdecimal():
        raise InvalidRequest("Last-Event-ID must be an id that the stream has sent: a number.")
    return min(int(last_event_id[:19]), LARGEST_ID)


def _refuse_in_stream(request: Request, *names: str) -> None:
    """InvalidRequest for parameters of the JSON answer, which would have no effect on a stream."""
    given = [name for name in names if name in request.query_params]
    if given:
        raise InvalidRequest(
            f"A stream waits and never ends a page, so {' and '.join(given)} would have no effect: "
            "leave that out, or ask for application/json."
        )


@router.get(
    "/runs/{run_id:int}/spec",
    operation_id="get_run_spec",
    summary="Request, complete spec, source of every value, and what attempts really used",
    responses=problems(NotFound),
)
def get_spec(services: ServicesDep, run_id: RunId) -> RunDocuments:
    return RunDocuments.model_validate(services.store.runs.documents(run_id))


@router.get(
    "/runs/{run_id:int}/events",
    operation_id="list_events",
    summary="Events of a run, as JSON or as a stream",
    response_model=EventPage,
    responses=FOLLOWED,
)
async def list_events(
    request: Request,
    services: ServicesDep,
    run_id: RunId,
    after: Position = 0,
    kind: Kind = None,
    limit: Limit = 100,
    wait: Wait = None,
    last_event_id: LastEventId = None,
) -> Response | EventPage:
    """Events after `after`. With `wait`, an answer without events is held back for so long.

    With `Accept: text/event-stream` it is a stream, which takes no `kind`, `limit` or `wait`:
    replay after `Last-Event-ID`, heartbeats as comments, live `progress` events (without id, they
    are not stored), and a final `end` event.
    """
    await run_in_threadpool(services.store.runs.get, run_id)
    if _wants_stream(request):
        _refuse_in_stream(request, "wait", "limit", "kind")
        start = _start(after, last_event_id)
        return stream(services.tailer, EventFeed(services.store, run_id), run_id, start)
    feed = EventFeed(services.store, run_id, limit, kind)
    if wait:
        await wait_for_news(request, services.tailer, feed, run_id, after, wait)
    _, records = await run_in_threadpool(feed.records_after, after)
    last_seq = records[-1].seq if records else after
    return EventPage(
        data=[Event.model_validate(record) for record in records],
        next_cursor=cursor_of(last_seq) if len(records) == limit else None,
        last_seq=last_seq,
    )


@router.get(
    "/runs/{run_id:int}/logs",
    operation_id="read_logs",
    summary="The trainer's output, as JSON or as a stream",
    response_model=LogPiece,
    responses=FOLLOWED,
)
async def read_logs(
    request: Request,
    services: ServicesDep,
    run_id: RunId,
    after: Position = 0,
    attempt: Attempts = None,
    wait: Wait = None,
    last_event_id: LastEventId = None,
) -> Response | LogPiece:
    """A piece of the log after the position `after`, over all attempts in turn, or of one.

    Of each attempt the first 256 KiB and the last 4 MiB are kept. `wait` and streams are as for
    events; the stream's events are called `log`.
    """
    run = await run_in_threadpool(services.store.runs.get, run_id)
    if attempt is not None and attempt > run.attempt:
        raise NotFound(
            f"Run {run_id} has no attempt {attempt}: it has begun {run.attempt} so far. GET "
            f"/runs/{run_id}/attempts lists them."
        )
    feed = LogFeed(services.store, run_id, attempt)
    if _wants_stream(request):
        _refuse_in_stream(request, "wait")
        return stream(services.tailer, feed, run_id, _start(after, last_event_id))
    if wait:
        await wait_for_news(request, services.tailer, feed, run_id, after, wait)
    _, piece = await run_in_threadpool(feed.text_after, after)
    return LogPiece.model_validate(piece)


@router.get(
    "/runs/{run_id:int}/metrics",
    operation_id="get_metrics",
    summary="Metric curves, as JSON or CSV",
    response_model=Series,
    responses={
        200: {"content": {"text/csv": {"example": "name,step,t,value\ntrain_loss,1,…,0.7\n"}}},
        **problems(InvalidRequest, NotFound),
    },
)
def get_metrics(
    services: ServicesDep,
    run_id: RunId,
    names: Annotated[QueryText | None, Query(description="Comma-separated; default all.")] = None,
    max_points: Annotated[
        int | None,
        Query(
            ge=2,
            le=10_000,
            description="At most so many a series, extremes kept; default 1000, as CSV all.",
        ),
    ] = None,
    lineage: Annotated[bool, Query(description="With the curves of the parents before.")] = False,
    format_: Annotated[
        Literal["json", "csv"], Query(alias="format", description="Of the answer.")
    ] = "json",
) -> Response | Series:
    """Points of (step, unix seconds, value) by name; later attempts win a step.

    A name without points is left out while the run may still get some; once it is over, it is 404.
    """
    is_over = services.store.runs.get(run_id).state in TERMINAL
    wanted = [name.strip() for name in names.split(",") if name.strip()] if names else None
    if max_points is None and format_ == "json":
        max_points = DEFAULT_POINTS
    series = services.store.metrics.series(run_id, wanted, max_points, lineage)
    missing = [name for name in wanted or () if name not in series]
    if is_over and missing:
        known = ", ".join(sorted(services.store.metrics.series(run_id, None, 2, lineage)))
        raise NotFound(
            f"Run {run_id} is over and has no metric {', '.join(missing)}; "
            + (f"there are {known}." if known else "it has none.")
        )
    if format_ == "csv":
        return StreamingResponse(_csv(series), media_type="text/csv")
    return Series(series=series)


def _csv(series: MetricSeries) -> Iterator[str]:
    yield "name,step,t,value\n"
    for name, points in series.items():
        yield "".join(f"{name},{step},{rfc3339(t)},{value!r}\n" for step, t, value in points)


@router.get(
    "/runs/{run_id:int}/attempts",
    operation_id="list_attempts",
    summary="Executions of a run",
    responses=problems(NotFound, InvalidRequest),
)
def list_attempts(
    services: ServicesDep, run_id: RunId, limit: Limit = 50, after: Cursor = None
) -> Page[Attempt]:
    """First to last."""
    services.store.runs.get(run_id)
    records = services.store.attempts.list(run_id)
    page, cursor = page_of(records, lambda record: (record.number,), limit, after)
    return Page(data=[attempt_document(record) for record in page], next_cursor=cursor)
