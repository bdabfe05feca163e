"""`share-spark exporter`: metrics of all groups of a location for Prometheus, also while no engine runs. No JVM."""

from __future__ import annotations

from collections.abc import Sequence

from share_spark.cli.arguments import parsed
from share_spark.cli.groups import admin_of
from share_spark.cli.signals import asked_to_end


def serve_metrics(arguments: Sequence[str]) -> int:
    """Serve metrics until Ctrl-C or SIGTERM. Raises ConfigError, StateError, DeadLetterError at the start; later a
    metric reports faults."""
    from share_spark.admin.location_metrics import LocationMetrics
    from share_spark.admin.recent_letters import RecentLetters
    from share_spark.metrics.endpoint import listening

    given = parsed(arguments)
    admin = admin_of(given)
    admin.look()
    if given.dead_letter is not None:
        RecentLetters(given.dead_letter).check()
    metrics = LocationMetrics(admin, given.dead_letter)
    metrics.read()
    server, thread = listening(metrics, given.host, given.port, "--port")
    host = f"[{given.host}]" if ":" in given.host else given.host
    try:
        with asked_to_end() as over:
            print(f"share-spark: http://{host}:{server.server_port}/metrics, until Ctrl-C", flush=True)
            while not over.wait(given.interval):
                metrics.read()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    return 0
