"""`share-spark report` and `share-spark ui`: share groups as a page, in a file or live. No JVM."""

from __future__ import annotations

import contextlib
import threading
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from share_spark.cli.arguments import parsed, topic_place
from share_spark.cli.groups import admin_of
from share_spark.cli.signals import asked_to_end
from share_spark.maintenance.heartbeat import wall_clock_ms
from share_spark.model.errors import ConfigError, StateError

if TYPE_CHECKING:
    from share_spark.kafka.share_groups import ClusterShareGroups
    from share_spark.web.pictures import Picture
    from share_spark.web.server import Pages, PageServer


def write_report(arguments: Sequence[str]) -> int:
    """Run `share-spark report`. Raises ConfigError, StateError, DeadLetterError."""
    from share_spark.web.page import report_page

    given = parsed(arguments)
    if given.location is None:
        return _write_cluster_report(given)
    picture = _picture(given)
    write_page(Path(given.html), report_page(picture))
    _say_written(given, len(picture.groups))
    return 0


def _write_cluster_report(given: Namespace) -> int:
    cluster = _cluster(given).look()
    if given.group:
        chosen = [group for group in cluster.groups if group.group_id in given.group]
        if missing := sorted(set(given.group) - {group.group_id for group in chosen}):
            raise StateError(f"Group '{missing[0]}' does not exist: Kafka at {cluster.servers} has none of that name.")
        cluster = replace(cluster, groups=chosen)
    from share_spark.web.cluster_page import cluster_report

    write_page(Path(given.html), cluster_report(cluster, wall_clock_ms()))
    _say_written(given, len(cluster.groups))
    return 0


def _say_written(given: Namespace, groups: int) -> None:
    print(f"{given.html}: {groups:,} share group{'s' * (groups != 1)}", flush=True)


def _cluster(given: Namespace) -> ClusterShareGroups:
    """Return the cluster's own groups, for a call without a state. Raises ConfigError."""
    kafka = topic_place(given).kafka
    if kafka is None and given.topic_table is None:
        raise ConfigError("--location (share groups of share_spark) or --bootstrap-server (a cluster's own) is missing")
    for name in ("topic_table", "dead_letter", "at", "version"):
        if getattr(given, name, None) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} takes a --location, too")
    assert kafka is not None, "as there is no topic table"
    from share_spark.kafka.share_groups import ClusterShareGroups  # with kio, 0.2 s

    return ClusterShareGroups(kafka, given.timeout)


def _picture(given: Namespace) -> Picture:
    """Return the picture of the latest version, or of the chosen version or time."""
    from share_spark.admin.state_versions import StateVersions
    from share_spark.web.pictures import take_past_picture, take_picture
    from share_spark.web.repeated_reads import GroupTimes, LetterTables

    letters = LetterTables(given.dead_letter)
    letters.check()
    admin = admin_of(given)
    look = admin.look()
    version = StateVersions(given.location).asked(given.version, given.at)
    look = look if version is None else admin.look(version.number)
    series = partial(GroupTimes().picture, look)
    if version is not None:
        return take_past_picture(look, given.location, wall_clock_ms(), version, given.group, series)
    in_report = partial(letters.in_report, look)
    return take_picture(look, given.location, wall_clock_ms(), given.group, in_report, series)


def write_page(path: Path, page: str) -> None:
    """Write all of the page or nothing. Raises ConfigError."""
    if not path.name:
        raise ConfigError(f"--html {path}: not a file")
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(page, encoding="utf-8")
        beside.replace(path)
    except OSError as fault:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise ConfigError(f"--html {path}: {fault.strerror or fault}") from None


def serve_ui(arguments: Sequence[str]) -> int:
    """Serve the page until Ctrl-C or SIGTERM. Raises ConfigError, StateError, DeadLetterError."""
    from share_spark.web.server import PageServer

    given = parsed(arguments)
    with PageServer(_pages(given), given.host, given.port, given.token) as server:
        needed = " (with ?token=... once)" if given.token is not None else ""
        print(f"share-spark: {server.url}{needed}, until Ctrl-C", flush=True)
        _serve_until_asked(server)
    return 0


def _pages(given: Namespace) -> Pages:
    """Return the pages. Raises faults of a place now, so that they are not on the page."""
    from share_spark.web.repeated_reads import LetterTables
    from share_spark.web.server import PageSource

    if given.location is None:
        return _cluster_pages(given)
    admin, letters = admin_of(given), LetterTables(given.dead_letter)
    admin.look()
    letters.check()
    return PageSource(admin, wall_clock_ms, letters)


def _cluster_pages(given: Namespace) -> Pages:
    cluster = _cluster(given)
    cluster.look()
    from share_spark.web.cluster_page import ClusterPageSource

    return ClusterPageSource(cluster, wall_clock_ms)


def _serve_until_asked(server: PageServer) -> None:
    with asked_to_end() as over:
        thread = threading.Thread(target=server.serve_forever, name="share-spark-ui", daemon=True)
        thread.start()
        try:
            over.wait()
        finally:
            server.shutdown()
            thread.join()
