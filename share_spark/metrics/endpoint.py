"""The endpoint that Prometheus scrapes: one server per engine, from before its claim to its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from share_spark.engine.progress import EngineLook, MicroBatchProgress
from share_spark.metrics.families import Family, families_of, families_of_look, fronts_of
from share_spark.metrics.oldest import LogEndMarks
from share_spark.metrics.totals import GroupTotals
from share_spark.model.errors import ConfigError
from share_spark.model.hosts import host_in, is_loopback

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


@dataclass(slots=True, kw_only=True, eq=False)
class GroupMetrics(Collector):
    """The metrics of one engine. ``note`` is called on the thread of the query, ``collect`` on those of the server;
    they share values that are replaced, never changed. ``look``: how to look at the engine, None until there is one."""

    group_id: str
    clock: Callable[[], int]
    look: Callable[[], EngineLook] | None = None
    _began_ms: int = field(init=False)
    _totals: GroupTotals = field(default_factory=GroupTotals)
    _marks: LogEndMarks = field(default_factory=LogEndMarks)

    def __post_init__(self) -> None:
        self._began_ms = self.clock()

    def note(self, progress: MicroBatchProgress) -> None:
        """Add a micro-batch that has ended."""
        self._totals = self._totals.plus(progress)

    def collect(self) -> Iterator[Family]:
        """Return all metrics as of now."""
        now_ms = self.clock()
        yield from families_of(self.group_id, self._totals, self._began_ms, now_ms)
        if self.look is not None:
            look = self.look()
            self._marks = marks = self._marks.looked(fronts_of(look), now_ms)
            yield from families_of_look(self.group_id, look, marks, now_ms)


def listening(metrics: Collector, host: str, port: int, setting: str) -> tuple[WSGIServer, threading.Thread]:
    """Serve ``metrics`` from now on, on a thread; port 0: any free one. Raises ConfigError, which names ``setting``."""
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as fault:
        raise ConfigError(f"{setting}: cannot listen on {host}:{port}: {fault.strerror or fault}") from None
    app = server.get_app()
    assert app is not None, "made with one"
    server.set_app(_guarded(app, only_this_machine=is_loopback(host)))
    return server, thread


_PATHS = ("/", "/metrics")


def _guarded(app: WSGIApplication, *, only_this_machine: bool) -> WSGIApplication:
    """Refuse other paths and, as long as only this machine reaches it, no other names of the machine: a page in a
    browser may have one that leads here."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if only_this_machine and not is_loopback(host_in(environ.get("HTTP_HOST", ""))):
            return _refused("403 Forbidden", start_response)
        if environ.get("PATH_INFO") not in _PATHS:
            return _refused("404 Not Found", start_response)
        return app(environ, start_response)

    return answer


def _refused(status: str, start_response: StartResponse) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{status}\n".encode()]


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """A server of ``metrics`` at ``/metrics``, on a thread of its own, until ``close``."""

    metrics: GroupMetrics
    _server: WSGIServer
    _thread: threading.Thread

    @classmethod
    def open(cls, metrics: GroupMetrics, host: str, port: int) -> MetricsServer:
        """Begin to serve. Raises ConfigError: the port is taken, or the host is none of this machine."""
        return cls(metrics, *listening(metrics, host, port, "metrics.port"))

    def watch(self, look: Callable[[], EngineLook]) -> Callable[[MicroBatchProgress], None]:
        """Look at this engine from now on. Returns what is to be called after each of its micro-batches."""
        self.metrics.look = look
        return self.metrics.note

    def close(self) -> None:
        """End the server and free its port. Safe to call twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
