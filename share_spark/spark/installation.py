"""The needs of a session outside of this package: releases that go together, Java, jars, the archive. Checked without a
session; what Spark itself does is only known once one is started (``probes``)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

from share_spark.model.errors import EnvironmentFault
from share_spark.spark.class_archive import archive_path
from share_spark.spark.jars import cached_jars, engine_tag, java_release, releases, require_java


class Finding(NamedTuple):
    """The result of a check. ``name``: what was checked. ``is_fault``: no session can be started with it."""

    name: str
    text: str
    is_fault: bool = False


def findings() -> list[Finding]:
    """Return the findings in the order of a session's needs. Starts only ``java -version``; fetches nothing."""
    return [
        Finding("Python", ".".join(map(str, sys.version_info[:3]))),
        _tried("Spark and Delta", releases),
        _tried("Java", lambda: f"{java_release(require_java())} ({require_java()})"),
        _tried("jars", _jars),
        _tried("class-data archive", _archive),
    ]


def _tried(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name, look())
    except EnvironmentFault as fault:
        return Finding(name, str(fault), is_fault=True)


def _jars() -> str:
    found = cached_jars()
    return f"{len(found)} for {engine_tag()}" if found else "not here; the first session fetches them (or: prepare)"


def _archive() -> str:
    if cached_jars() and archive_path().exists():
        return "there"
    return "not there; a session takes twice as long to start (prepare makes it)"
