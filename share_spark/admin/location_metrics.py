"""The metrics of all groups of a location, from the files of its tables, for Prometheus also while no engine runs.

A thread reads every few seconds; a scrape gets the last result, so it waits neither for files nor for brokers. A group
that cannot be read, or a part of it, is reported as such and does not affect the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from share_spark.admin.group_details import GroupDetails, PartitionOffsets
from share_spark.admin.group_samples import Sample, engine_samples, fault_samples, oldest_samples, samples_of
from share_spark.admin.recent_letters import RecentLetters
from share_spark.admin.share_group_admin import GroupsLook, ShareGroupAdmin
from share_spark.maintenance.heartbeat import wall_clock_ms
from share_spark.metrics import location_definitions as all_metrics
from share_spark.metrics.location_definitions import EXPORTER_METRICS, GROUP_METRICS
from share_spark.model.errors import TopicError

MOST_ASKED = 50
"""The most records of a group that one look requests, as a broker may send up to 1 MB for each. The greatest lags come
first; a partition that stands still is known then, and makes room for others."""


@dataclass(slots=True)
class RecordAges:
    """The ages of one group. Kept is when the record at a start offset was written, while the offset stays."""

    _written_ms: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def ages_ms(self, look: GroupsLook, rows: Sequence[PartitionOffsets], now_ms: int) -> dict[tuple[str, int], int]:
        """Return the known ages, by topic and partition, of those with a lag. Raises TopicError."""
        behind = {(row.topic, row.partition): row for row in rows if row.lag}
        self._written_ms = {
            place: known
            for place, known in self._written_ms.items()
            if place in behind and behind[place].start_offset == known[0]
        }
        new = sorted(
            (row for place, row in behind.items() if place not in self._written_ms), key=lambda row: -(row.lag or 0)
        )
        for place, age_ms in look.lag_ms(new[:MOST_ASKED]).items():
            self._written_ms[place] = behind[place].start_offset, now_ms - age_ms
        return {place: max(0, now_ms - written_ms) for place, (_, written_ms) in self._written_ms.items()}


_log = logging.getLogger(__name__)

STATE, TOPICS, LETTERS, SETTINGS = "state", "topics", "dead letters", "settings"
"""The parts of a group that can be unreadable, each independently."""

Found = TypeVar("Found")


@dataclass(slots=True, eq=False)
class LocationMetrics(Collector):
    """The metrics of one location. ``letter_table``: that of all groups; None: the one that the group's engine names.
    ``read`` is called by one thread, ``collect`` by those of the server; they share a value that is replaced."""

    admin: ShareGroupAdmin
    letter_table: str | None = None
    clock: Callable[[], int] = wall_clock_ms
    _samples: Sequence[Sample] = ()
    _ages: dict[str, RecordAges] = field(default_factory=dict)
    _tables: dict[str, RecentLetters] = field(default_factory=dict)
    _broken: set[str] = field(default_factory=set)

    def read(self) -> None:
        """Read everything once."""
        began_ms, began_s = self.clock(), time.monotonic()
        samples = self._known(f"the state in {self.admin.location}", lambda: list(self._of_location()))
        of_exporter = (
            Sample(all_metrics.EXPORTER_READ_AT, (), began_ms / 1_000),
            Sample(all_metrics.EXPORTER_READ_S, (), time.monotonic() - began_s),
            Sample(all_metrics.EXPORTER_READ_FAILED, (), float(samples is None)),
        )
        self._samples = [*(samples or ()), *of_exporter]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield all metrics of the last ``read``; none before the first."""
        samples = self._samples
        for metrics, shared in ((GROUP_METRICS, ("group",)), (EXPORTER_METRICS, ())):
            families = {one: GaugeMetricFamily(one.name, one.text, labels=(*shared, *one.labels)) for one in metrics}
            for sample in samples:
                if sample.metric in families:
                    families[sample.metric].add_metric(sample.labels, sample.value)
            yield from families.values()

    def _of_location(self) -> Iterator[Sample]:
        look = self.admin.look()
        names = look.reader.known_groups()
        self._ages = {name: self._ages.get(name, RecordAges()) for name in names}
        letters = _LetterCounts(self._tables)
        for name in names:
            found = self._known(f"group {name!r}", partial(self._of_group, look, letters, name))
            yield from found if found is not None else fault_samples(name, {STATE: True})

    def _of_group(self, look: GroupsLook, letters: _LetterCounts, name: str) -> list[Sample]:
        if look.reader.is_deleted(name):
            return []
        found = list(engine_samples(name, look.reader.engine(name)))
        details = self._known(f"the state of group {name!r}", partial(look.details, name))
        if details is None:
            return [*found, *fault_samples(name, {STATE: True})]
        now_ms = self.clock()
        found += samples_of(details, now_ms)
        ages = self._known(f"the topics of group {name!r}", partial(self._ages_ms, look, details, now_ms))
        found += oldest_samples(name, details.offsets, ages or {})
        faults = {STATE: False, TOPICS: ages is None, SETTINGS: bool(details.operator_settings.fault)}
        table = self.letter_table or look.reader.letter_table(name)
        if table is not None:
            count = self._known(f"the dead letters of group {name!r}", partial(letters.unredriven, table, name))
            found += [] if count is None else [Sample(all_metrics.LETTERS, (name,), count)]
            faults[LETTERS] = count is None
        return [*found, *fault_samples(name, faults)]

    def _ages_ms(self, look: GroupsLook, details: GroupDetails, now_ms: int) -> dict[tuple[str, int], int]:
        """Return the ages by topic and partition. Raises TopicError."""
        if details.ends_fault:
            raise TopicError(details.ends_fault)
        if any(row.lag is None for row in details.offsets if row.start_offset >= 0):
            raise TopicError("where they are, or some of their partitions, is not known")
        return self._ages[details.state.group_id].ages_ms(look, details.offsets, now_ms)

    def _known(self, what: str, read: Callable[[], Found]) -> Found | None:
        """Return what ``read`` returns, None if it raises: other parts must still work. Logs each error once."""
        try:
            found = read()
        except Exception as fault:  # noqa: BLE001 - a metric says so
            if what not in self._broken:
                _log.warning("%s cannot be read: %s", what, str(fault) or type(fault).__name__)
            self._broken.add(what)
            return None
        self._broken.discard(what)
        return found


@dataclass(slots=True)
class _LetterCounts:
    """The letter counts of one look: each table is read once, however many groups share it."""

    tables: dict[str, RecentLetters]
    _counts: dict[str, dict[str, int]] = field(default_factory=dict)
    _broken: dict[str, Exception] = field(default_factory=dict)

    def unredriven(self, table: str, group_id: str) -> int:
        """Return the count of a group. Raises as ``RecentLetters``, and what a broken file raises."""
        if table in self._broken:
            raise self._broken[table]
        if table not in self._counts:
            try:
                self._counts[table] = self.tables.setdefault(table, RecentLetters(table)).unredriven()
            except Exception as fault:
                self._broken[table] = fault
                raise
        return self._counts[table].get(group_id, 0)
