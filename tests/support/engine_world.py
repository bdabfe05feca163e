"""A world of twins for one share group: a topic, a state log, a clock, and engines that come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from random import Random
from typing import Any

from share_spark.engine.micro_batch import ShareGroupEngine
from share_spark.engine.pauses import NOT_PAUSED
from share_spark.engine.ports import Claim
from share_spark.engine.progress import MicroBatchProgress
from share_spark.engine.topics import SubscribedTopics
from share_spark.engine.world import Ports
from share_spark.model.config import DeliveryOrder, GroupConfig
from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.requests import AcknowledgeType
from share_spark.partition import SharePartition, check_invariants
from tests.twins.late_delivery import LateDelivery
from tests.twins.memory import (
    InMemoryShareStateStore,
    InMemoryStateLog,
    InMemoryTopicLog,
    ManualClock,
    MemoryRecord,
    Moment,
    StateCommit,
)
from tests.twins.memory_clients import InMemoryClients
from tests.twins.memory_delivery import Answer, InMemoryDelivery, Ledgers, RecordHandler
from tests.twins.memory_output import InMemoryDeadLetters, InMemoryOutputSink, InMemoryOutputTable

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
GROUP, TOPIC = "billing", "orders"
LETTERS = "VQD-X"


class Death(BaseException):
    """The process ends here; no code of the engine may catch it."""


class Interruption:
    """Raises ``fault`` once, at ``moment`` of the ``nth`` append of records from when it is made (1: the next)."""

    def __init__(self, moment: Moment, fault: BaseException, nth: int = 1) -> None:
        self.moment, self.fault, self.left = moment, fault, nth

    def __call__(self, moment: Moment, commit: StateCommit) -> None:
        if moment is self.moment and commit.kind == "records":
            self.left -= 1
            if self.left == 0:
                raise self.fault


class InMemoryGroup:
    """What outlives an engine. ``calls`` are the handler's: (partition, offset, delivery count). ``costs``: what the
    record at an offset costs if it is accepted. ``clients``: those outside of Spark, if the group has some."""

    def __init__(
        self,
        *,
        partitions: int = 1,
        handler: RecordHandler | None = None,
        store: Callable[[InMemoryGroup, str], Any] | None = None,
        output: bool = False,
        loses_rows: bool = False,
        late: Random | None = None,
        **settings: object,
    ) -> None:
        """``store``: makes the store of a run, if it is not to be the twin; then ``state_log`` stays empty. ``output``:
        each accepted record puts out a row. ``loses_rows``: those that are not in the sink end with their engine.
        ``late``: calls outlast micro-batches, and this says when they end; ``batch`` is the most records of one."""
        given = {name.replace("__", "."): value for name, value in settings.items()}
        self.config = GroupConfig.parse({"share.auto.offset.reset": "earliest", **given})
        self.clock, self.state_log, self.dead_letters = ManualClock(), InMemoryStateLog(), InMemoryDeadLetters()
        self.output = InMemoryOutputTable() if output else None
        self.ledgers: Ledgers = {}
        self.stepped: dict[str, Collection[tuple[TopicPartition, int, int]]] = {}
        self.batch = 1
        self.loses_rows = loses_rows
        self.late = late
        self.pauses = NOT_PAUSED
        self.costs: Callable[[int], float] = lambda _: 0.0
        self.topics = InMemoryTopicLog()
        self.topics.create_topic(TOPIC, partitions)
        self.handler: RecordHandler = handler or (lambda *_: ACCEPT)
        self.calls: list[tuple[int, int, int]] = []
        self.runs = 0
        self.make_store = store or memory_store
        self.clients: InMemoryClients | None = None

    def produce(self, records: int, partition: int = 0) -> None:
        self.topics.append(at(partition), [MemoryRecord(self.clock())] * records)

    def produce_keys(self, keys: str, partition: int = 0) -> None:
        """A record for each letter; ``.`` has no key."""
        values = (None if key == "." else key.encode() for key in keys)
        self.topics.append(at(partition), [MemoryRecord(self.clock(), key=key) for key in values])

    def engine(
        self, *, available_now: bool = False, interrupt: Callable[[Moment, StateCommit], None] | None = None
    ) -> EngineLife:
        """A new process: claims the group and loads its state."""
        self.runs += 1
        found = EngineLife(self, f"run{self.runs}", available_now)
        found.claim = found.engine.start()
        if interrupt is not None:
            found.store.interrupt = interrupt
        return found

    def handle(self, topic: str, partition: int, offset: int, count: int) -> Answer:
        self.calls.append((partition, offset, count))
        return self.handler(topic, partition, offset, count)

    def machine_is_lost(self) -> None:
        """The engine ended with its machine: which records were in a handler is not known."""
        self.ledgers.clear()

    def state(self, partition: int = 0) -> SharePartition:
        key = SharePartitionKey(GROUP, self.topics.describe(TOPIC).topic_id, partition)
        state = self.state_log.state(GROUP)[key][1]
        check_invariants(state)
        return state

    def window(self, partition: int = 0) -> str:
        """``SPSO-SPEO: runs`` with V available, Q acquired, D acknowledged, X archived and the delivery count."""
        state = self.state(partition)
        runs = [f"{run[0]}-{run[1]} {LETTERS[run[2]]}{run[3]}" for run in state.in_flight]
        return f"{state.start_offset}-{state.end_offset}: {', '.join(runs)}".strip(": ")

    @property
    def deliveries(self) -> Counter[tuple[int, int]]:
        """Handler calls per (partition, offset)."""
        return Counter(call[:2] for call in self.calls)


def memory_store(world: InMemoryGroup, run_id: str) -> InMemoryShareStateStore:
    return InMemoryShareStateStore(
        log=world.state_log,
        group_id=GROUP,
        run_id=run_id,
        updates_per_snapshot=world.config.updates_per_snapshot,
    )


class EngineLife:
    """One process of an engine. Drop it to kill it."""

    claim: Claim

    def __init__(self, world: InMemoryGroup, run_id: str, available_now: bool) -> None:
        self.store = world.make_store(world, run_id)
        self.sink = InMemoryOutputSink(world.output) if world.output is not None else None
        topics = SubscribedTopics(group_id=GROUP, topics=[TOPIC], log=world.topics, clock=world.clock)
        is_ordered = world.config.delivery_order == DeliveryOrder.KEY
        given = world.topics, world.handle, world.ledgers, is_ordered, world.output is not None, world.loses_rows
        self.delivery = (
            InMemoryDelivery(*given)
            if world.late is None
            else LateDelivery(*given, world.stepped, rng=world.late, batch=world.batch)
        )
        self.delivery.costs = world.costs
        if self.sink is not None:
            self.sink.held = lambda: self.delivery.held
        ports = Ports(
            topics=topics,
            store=self.store,
            delivery=self.delivery,
            dead_letters=world.dead_letters,
            clock=world.clock,
            config=lambda: world.config,
            sink=self.sink,
            pauses=lambda: world.pauses,
            clients=world.clients,
        )
        self.world = world
        self.engine = ShareGroupEngine(ports=ports, available_now=available_now)
        self.batch_id = 0

    def run(self, *, stopping: bool = False) -> MicroBatchProgress:
        try:
            return self.engine.run(self.batch_id, stopping=stopping)
        finally:
            self.batch_id += 1

    @property
    def windows(self) -> list[tuple[str, int, int]]:
        """(topic, SPSO, SPEO) of each share-partition, as the engine knows them."""
        return [summary[:3] for summary in self.engine.look().summaries.values()]

    @property
    def next_available_ms(self) -> int | None:
        """When the next delayed record may be delivered, if there is one."""
        delayed = [summary.delayed for summary in self.engine.look().summaries.values()]
        return min((times[0][0] for times in delayed if times), default=None)

    def run_until_done(self, *, step_ms: int = 0, most: int = 100) -> list[MicroBatchProgress]:
        """Micro-batches of an available-now run until it says that it is done."""
        progress = []
        while not self.engine.done:
            assert len(progress) < most, f"not done after {most} micro-batches: {self.world.window()}"
            progress.append(self.run())
            self.world.clock.advance(step_ms)
        return progress


def at(partition: int = 0) -> TopicPartition:
    return TopicPartition(TOPIC, partition)
