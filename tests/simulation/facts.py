"""Records, attempts and their ends as the ledger describes them, and what it keeps of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from share_spark.engine.pauses import NOT_PAUSED, Pauses
from share_spark.model.config import GroupConfig
from share_spark.model.ids import LogEnds, TopicPartition
from share_spark.model.records import DeliveryState, Doubt
from share_spark.model.requests import AcknowledgeType, PartitionResponse
from share_spark.partition.kafka_modes import KafkaRequest
from tests.twins.memory_output import InMemoryDeadLetterTable

At = tuple[TopicPartition, int]
"""A record: where, and its offset."""

ACCEPT, RELEASE, REJECT, GAP = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.GAP,
)
AVAILABLE, ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED


class Violation(BaseException):
    """A promise is broken. Not an Exception: to an engine that would be a fault to recover from."""


def demand(holds: bool, *what: object) -> None:
    """Raise Violation unless it holds."""
    if not holds:
        raise Violation(" ".join(str(part) for part in what))


class Cell(NamedTuple):
    """One offset of the window, as ``InFlightBatch`` without its offsets."""

    state: DeliveryState
    count: int
    member_id: str | None
    deadline_ms: int | None
    doubt: Doubt
    excused: int = 0


class Said(NamedTuple):
    """An answer about one record: acknowledge type or ``Loss``, the text that came with it, and the delay that it asks
    for."""

    kind: int
    error: str | None
    delay_ms: int | None = None


DONE, DIED_AMONG_OTHERS, THROTTLED = "done", "died among others", "throttled"


class Course(NamedTuple):
    """How far an attempt has come. ``left``: how it left the handler, "" if it is still there. ``waits``: its code does
    not run."""

    entered: bool = False
    left: str = ""
    waits: bool = False

    @property
    def in_handler(self) -> bool:
        """Its code runs, or ran when its process died."""
        return self.entered and not self.left and not self.waits


NOT_YET = Course()


@dataclass(slots=True, eq=False)
class Session:
    """The session of an outside member over one connection. ``is_over``: it has ended it, or its connection."""

    is_over: bool = False


@dataclass(slots=True, eq=False)
class Acquisition:
    """One attempt at one record. ``answer``: of its handler, None if there is none yet. ``was_alone``: it was the only
    call when its process died. ``is_kept``: its answer is in a ledger, for the next engine. ``is_gone``: the log has
    lost its record since. ``session``: the one in which an outside member was told of it."""

    version: int
    member_id: str
    count: int
    doubt: Doubt
    course: Course = NOT_YET
    answer: int | None = None
    was_alone: bool = False
    is_kept: bool = False
    is_gone: bool = False
    session: Session | None = None


class Fate(NamedTuple):
    """How a record ended. ``may_have_letter``: also where log start and limit both were reasons. ``by_client``: its
    last attempt was one of an outside member."""

    kind: str
    count: int = 0
    error: str | None = None
    may_have_letter: bool = False
    by_client: bool = False


Courses = Mapping[str, Mapping[At, Course]]
"""By member: how far the attempts of its last delivery have come."""


class Asked(NamedTuple):
    """What a client asked of a share-partition, and what an engine is about to answer."""

    request: KafkaRequest
    response: PartitionResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What an engine knew when it decided: the reasons that its commit may have. ``courses``: how far the attempts of
    others had come, as ledgers show it except for ``lost`` members. ``said_ms``: when it heard
    the answers. ``stopping``: it acquires nothing more;
    ``gives_back``: and ends all that it holds. ``forgiven``: attempts that it gives back as if they had not been made,
    as there was nowhere to put their output. ``has_target``: it writes letters of what it archives. ``looked``: the log
    ends that it has gone by, of every partition. ``config``, ``pauses``: as it has seen them. ``asked``: by clients, in
    order."""

    run_id: str
    member_id: str
    now_ms: int
    ends: Mapping[TopicPartition, LogEnds]
    said: Mapping[At, tuple[Acquisition, Said]]
    said_ms: int
    stopping: bool
    gives_back: bool
    forgiven: frozenset[Acquisition]
    has_target: bool
    courses: Courses
    lost: frozenset[str]
    looked: Mapping[TopicPartition, LogEnds]
    config: GroupConfig
    pauses: Pauses = NOT_PAUSED
    asked: Mapping[TopicPartition, Sequence[Asked]] = field(default_factory=dict)

    def log_start(self, at: TopicPartition) -> int:
        """0 where nothing was to be decided."""
        return self.ends[at].log_start_offset if at in self.ends else 0


@dataclass(slots=True)
class Books:
    """What is known of all records. ``is_late``: calls outlast deliveries. ``has_clients``: the group has outside
    members, whose fetches leave holes where the log holds no record.

    ``times``: by version, when the last micro-batch that counts was decided. ``acquisitions``: the last attempt at
    each. ``deliveries``: of each member the attempts in its last delivery, or, where calls outlast deliveries, all
    that its ledger may have.
    ``entered``: how often a handler was entered with a record. ``overcharged``: how often a lost machine has cost it an
    attempt that was not made. ``failed``: how often its handler has released it, or it alone can have ended an engine.
    ``fates``: of every record that is finished. ``in_sink``: answers that a commit of the sink has decided, with
    the version that acquired. ``suspicions``: how many deaths a record may have caused, for all that is known.
    ``alone_in_crash``: records that were archived for one. ``unlettered``: finished by a commit of an engine without a
    dead-letter target.

    All of them are of the records that the offsets have now. ``unseen``: offsets that the log has lost, and no commit
    says so: whether another record is there now cannot be known. ``rows_of_the_gone``, ``fates_of_the_gone``: what has
    become of records before they were lost; the latter without those that were ``unlettered``. ``letters_of_the_gone``:
    how many of ``letters`` were written until then.

    ``given``: attempts of outside members, by record, owner and count. ``cut``: logs that were truncated at some time.
    ``is_empty``: the log holds no record there, any
    more. ``is_called``: a worker that has outlived its engine has this record in its handler.
    """

    letters: InMemoryDeadLetterTable
    is_late: bool = False
    times: list[int] = field(default_factory=list)
    acquisitions: dict[At, Acquisition] = field(default_factory=dict)
    deliveries: dict[str, dict[At, Acquisition]] = field(default_factory=dict)
    entered: Counter[At] = field(default_factory=Counter)
    overcharged: Counter[At] = field(default_factory=Counter)
    failed: Counter[At] = field(default_factory=Counter)
    fates: dict[At, Fate] = field(default_factory=dict)
    in_sink: dict[At, tuple[int, Said]] = field(default_factory=dict)
    suspicions: Counter[At] = field(default_factory=Counter)
    alone_in_crash: list[At] = field(default_factory=list)
    unlettered: set[At] = field(default_factory=set)
    unseen: set[At] = field(default_factory=set)
    rows_of_the_gone: Counter[At] = field(default_factory=Counter)
    fates_of_the_gone: dict[At, list[Fate]] = field(default_factory=dict)
    letters_of_the_gone: Counter[At] = field(default_factory=Counter)
    given: dict[tuple[At, str, int], Acquisition] = field(default_factory=dict)
    cut: set[TopicPartition] = field(default_factory=set)
    has_clients: bool = False
    is_empty: Callable[[At], bool] = lambda _: False
    is_called: Callable[[At], bool] = lambda _: False

    def forget_attempts(self, member_id: str, attempts: Mapping[At, Acquisition]) -> None:
        """No ledger has them any more."""
        known = self.deliveries.get(member_id, {})
        for one in [one for one, attempt in attempts.items() if known.get(one) is attempt]:
            del known[one]

    def forget(self, at: TopicPartition, end: int) -> None:
        """The log has lost what was at ``end`` and above; what is there from now on are other records."""
        self.cut.add(at)
        accepted = (one for one, (_, said) in self.in_sink.items() if said.kind == ACCEPT)
        self.rows_of_the_gone.update([one for one in accepted if _is_cut(one, at, end)])
        for one, fate in self.fates.items():
            if _is_cut(one, at, end) and one not in self.unlettered:
                self.fates_of_the_gone.setdefault(one, []).append(fate)
                self.letters_of_the_gone[one] = len(self.letters.of(*one))
        for delivery in self.deliveries.values():
            for one in [one for one in delivery if _is_cut(one, at, end)]:
                delivery[one].is_gone = True
        for key in [key for key in self.given if _is_cut(key[0], at, end)]:
            self.given.pop(key).is_gone = True
        for marked in (self.unseen, self.unlettered):
            marked.difference_update([one for one in marked if _is_cut(one, at, end)])
        books: list[dict[At, Any]] = [self.acquisitions, self.fates, self.in_sink]
        for book in [*books, self.entered, self.overcharged, self.failed, self.suspicions]:
            for one in [one for one in book if _is_cut(one, at, end)]:
                del book[one]


def _is_cut(one: At, at: TopicPartition, end: int) -> bool:
    return one[0] == at and one[1] >= end
