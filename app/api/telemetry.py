"""The API's own Prometheus metrics: runs by state and outcome, queue waits, request durations."""

import time
from collections.abc import Iterable
from contextlib import suppress

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app import __version__
from app.errors import Unavailable
from app.lifecycle import RunState
from app.store.store import Store

REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30)
WAIT_BUCKETS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400)
# Starts are written with the clocks of the workers' hosts, and seen once they are committed.
CLOCKS_DIFFER_SECONDS = 60.0


class Telemetry:
    """One registry an application, so that two in one process do not mix."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last_look: float | None = None
        self._started: frozenset[int] = frozenset()
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "stoker_http_request_duration_seconds",
            "Seconds until an answer begins.",
            ("method", "route", "status"),
            buckets=REQUEST_BUCKETS,
            registry=self._registry,
        )
        self._waits = Histogram(
            "stoker_run_queue_wait_seconds",
            "Seconds from a run's creation to its first attempt.",
            buckets=WAIT_BUCKETS,
            registry=self._registry,
        )
        info = Gauge("stoker_build_info", "Always 1.", ("version",), registry=self._registry)
        info.labels(__version__).set(1)
        self._registry.register(_RunCounts(store))

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request whose answer began after so many seconds."""
        known = method if method in ("GET", "POST", "PATCH", "DELETE", "HEAD") else "other"
        self._requests.labels(known, route, str(status)).observe(seconds)

    def _watch_starts(self) -> None:
        """Observe the wait of each run whose first attempt began since the last scrape."""
        is_first = self._last_look is None
        now = time.time()
        moment = now if self._last_look is None else self._last_look
        started = self._store.runs.started_after(moment - CLOCKS_DIFFER_SECONDS)
        for run_id in started.keys() - self._started:
            created_at, started_at = started[run_id]
            if not is_first:
                self._waits.observe(max(started_at - created_at, 0.0))
        self._started, self._last_look = frozenset(started), now

    def exposition(self) -> bytes:
        """All metrics as Prometheus text."""
        with suppress(Unavailable):
            self._watch_starts()
        return generate_latest(self._registry)


class _RunCounts(Collector):
    """Counts that the database holds, read at each scrape; absent while it cannot be read."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> Iterable[Metric]:
        return []  # so that registering does not read the database

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("stoker_database_up", "1 while the database can be read, else 0.")
        try:
            counts = self._store.runs.counts_by_state()
            outcomes = self._store.runs.finished_counts()
        except Exception:  # noqa: BLE001 - whatever is wrong with it, the rest is still told
            up.add_metric([], 0)
            return [up]
        up.add_metric([], 1)
        states = GaugeMetricFamily("stoker_runs", "Runs by state.", labels=["state"])
        for state in RunState:
            states.add_metric([state.value], counts.get(state, 0))
        finished = CounterMetricFamily(
            "stoker_runs_finished", "Finished runs.", labels=["outcome", "reason"]
        )
        for (outcome, reason), count in outcomes.items():
            finished.add_metric([outcome, reason or ""], count)
        return [up, states, finished]
