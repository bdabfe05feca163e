"""The messages between a driver and its companion process, and their form on the connection.

    driver                                companion
                                            Hello            once, from an executor, before there is a Begin
      Begin             ->                                   once, first
      HandOver          ->                  Answered         as calls end, many in one message, in any order
      SetLimits         ->                  Unreachable      records of a hand-over cannot be read
      GiveBack          ->                  Failed           nothing more can be called; the last one
      Forget            ->                  CallsNow         twice a second
                                            Leaving          its executor has ended

A message is its length in eight bytes and a pickle: both ends are the same program, and nobody else has the connection.
"""

from __future__ import annotations

import functools
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.model.ids import TopicPartition

LENGTH = struct.Struct("<Q")


class Limits(NamedTuple):
    """Limits of the calls of one companion. ``most_calls``: at a time; 0: none begins. ``timeout_ms``: of a call whose
    handler has no limit of its own. ``round_number``: of calls that begin from now on (``engine.concurrency``)."""

    most_calls: int
    timeout_ms: int
    round_number: int = 0


class Begin(NamedTuple):
    """The first message. ``handler``: as ``delivery.packed_handler.packed`` has it, with this ``name``. ``ledger``: the
    path of the first ledger, ``<directory>/0``, which must not exist; later ones are ``1``, ``2``, ... beside it.
    ``most_rows``: of a batch that is read. ``in_threads``: the handler's calls have threads of their own. ``ordered``:
    in order of their keys."""

    handler: bytes
    name: str
    columns: tuple[str, ...]
    ledger: str
    limits: Limits
    most_rows: int
    in_threads: bool = False
    ordered: bool = False


class HandOver(NamedTuple):
    """Acquired records to call the handler with. ``number``: ascending. ``acquired``: exactly these offsets have to be
    answered, GAP where there is no record. ``part``: the RecordPart that reads them, pickled; None: ``records`` has
    them, as an Arrow stream of RECORD_COLUMNS and ``delivery_count``. ``in_turn``: one after another, while no other
    call runs. ``answers_known``: the messages with answers that were known when these records were acquired. In order
    of keys, records with a mark (``delivery.marked_rows``) are among them, which hold back others."""

    number: int
    acquired: Sequence[AcquiredSpan]
    part: bytes | None
    records: bytes | None = None
    in_turn: bool = False
    answers_known: int = 0


class SetLimits(NamedTuple):
    """New limits, for calls that begin from now on. After each throttled call one fewer may run until they come."""

    limits: Limits


class GiveBack(NamedTuple):
    """Give back all hand-overs so far: their records that were not entered are answered at once, as NOT_ENTERED. Calls
    that run go on, and later hand-overs are called as usual."""


class Forget(NamedTuple):
    """These hand-overs are in the state, or of no interest any more: their ledgers may go, and what still runs of them
    is cancelled and not answered."""

    numbers: tuple[int, ...]


FromDriver = Begin | HandOver | SetLimits | GiveBack | Forget


class RecordAnswer(NamedTuple):
    """The answer for the offsets of one topic-partition in hand-over ``number``. ``answer``: an AcknowledgeType or a
    Loss. ``delay_ms``: None if none was asked for."""

    number: int
    at: TopicPartition
    first_offset: int
    last_offset: int
    answer: int
    error: str | None = None
    delay_ms: int | None = None


class Answered(NamedTuple):
    """Answers, and the output rows of the accepted ones: an Arrow stream, empty if there are none. ``owners``: of each
    row the index of its answer. ``busy_s``: the time that the calls took, added up. ``throttled``: of each throttled
    call, the round in which it began. ``cost``: of all calls, added up."""

    answers: tuple[RecordAnswer, ...]
    rows: bytes = b""
    owners: Sequence[int] = ()
    busy_s: float = 0.0
    throttled: tuple[int, ...] = ()
    cost: float = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what is pickled: the answers in columns, as some thousand answers a second cost less so."""
        return _answered, (tuple(zip(*self.answers, strict=True)), *self[1:])


def _answered(columns: Sequence[Sequence[Any]], *rest: Any) -> Answered:
    """Undo ``Answered.__reduce__``."""
    return Answered(tuple(map(_record_answer, zip(*columns, strict=True))), *rest)


_record_answer = functools.partial(tuple.__new__, RecordAnswer)
"""``RecordAnswer._make`` without the call of a Python function for each answer."""


class Unreachable(NamedTuple):
    """Records of a hand-over cannot be read; they were answered as NOT_ENTERED before. ``is_topic``: the topic is
    wrong, not just out of reach."""

    text: str
    is_topic: bool = False


class Failed(NamedTuple):
    """The handler cannot be loaded, or has broken its contract with each record (``is_handler``), or the fault is ours.
    The last message: what was not entered was answered as NOT_ENTERED before, and calls that ran had some time to
    end."""

    text: str
    is_handler: bool


class CallsNow(NamedTuple):
    """The present state: calls that run, records that wait for one, and (topic, partition, offset, seconds) of the
    oldest calls, the oldest first, at most ten."""

    running: int
    waiting: int
    oldest: tuple[tuple[str, int, int, float], ...] = ()


class Leaving(NamedTuple):
    """Its executor has ended. What was not entered is given back; it ends once its calls have, or soon after."""


class Hello(NamedTuple):
    """The introduction of a companion that is about to start on an executor. ``where``: for people. ``ledgers``: the
    directory that its ledgers are to be in."""

    where: str
    ledgers: str


FromCompanion = Answered | Unreachable | Failed | CallsNow | Leaving


def packed_message(message: FromDriver | FromCompanion | Hello) -> bytes:
    """Return the message as bytes, with its length in front."""
    content = pickle.dumps(message, protocol=5)
    return LENGTH.pack(len(content)) + content


def received(connection: socket.socket) -> Any:
    """Return the next message. Raises EOFError, OSError."""
    (length,) = LENGTH.unpack(exactly(connection, LENGTH.size))
    return pickle.loads(exactly(connection, length))


def exactly(connection: socket.socket, length: int) -> bytearray:
    """Return the next bytes. Raises EOFError, OSError."""
    content = bytearray(length)
    view, at = memoryview(content), 0
    while at < length:
        count = connection.recv_into(view[at:])
        if not count:
            raise EOFError
        at += count
    return content
