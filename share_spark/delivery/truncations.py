"""Truncations of topic logs, noted beside the ledgers of a companion: entries that are of no interest any more.

Calls go on while a log is truncated, and records that are written there again have the same offsets, and counts from
one. An entry of the former record would be taken for theirs. So the driver notes the truncation before it acquires any
of them, and readers leave out what was handed over until then:

    hand-over   1: offsets 0..9      2: 5..14      truncated to 8      3: 8..11
    left        1: 0..7              2: 5..7                           3: 8..11
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from share_spark.delivery.ledger import LedgerEntries
from share_spark.model.errors import StateError
from share_spark.model.ids import TopicPartition

_NAME = "truncated"


class Truncation(NamedTuple):
    """The log of a topic-partition was cut at ``end`` (exclusive), after hand-over ``number`` and before the next."""

    topic: str
    partition: int
    end: int
    number: int


def note_truncations(directory: Path, ends: Mapping[TopicPartition, int], number: int) -> None:
    """Note that logs were truncated to ``ends`` after hand-over ``number``, for readers of the ledgers in
    ``directory``. Raises StateError."""
    notes = [json.dumps(Truncation(*at, end, number)) + "\n" for at, end in ends.items()]
    try:
        with (directory / _NAME).open("a") as file:
            file.write("".join(notes))
    except OSError as fault:
        raise StateError(f"a truncation cannot be noted in {directory}: {fault.strerror}") from fault


def truncations_in(directory: Path) -> list[Truncation]:
    """Return what was noted beside the ledgers in ``directory``. A line without an end is of a driver that died before
    it could acquire anything."""
    file = directory / _NAME
    lines = file.read_text().splitlines(keepends=True) if file.exists() else ()
    return [Truncation(*json.loads(line)) for line in lines if line.endswith("\n")]


def are_gone(entries: LedgerEntries, truncations: Iterable[Truncation]) -> npt.NDArray[np.bool_]:
    """Return, for each entry, whether its record was cut off."""
    found = np.zeros(len(entries), bool)
    for topic, partition, end, number in truncations:
        if topic in entries.topics:
            is_there = (entries.topic == entries.topics.index(topic)) & (entries.partition == partition)
            found |= is_there & (entries.offset >= end) & (entries.number <= number)
    return found
