"""The micro-batch: inputs, decision, one append, then effects. The only loop that owns order and durability.

    log ends, acknowledgements, what clients ask, time  ->  plan  ->  advance (decide)
        ->  announce dead letters  ->  one append  ->  has another engine claimed the group?  ->  write dead letters
        ->  deliver what was acquired  ->  commit its output; its acknowledgements are an input of the next micro-batch

If the process dies ...
- before the append: nothing was visible. Acknowledgements that were not committed are in the ledgers of the workers,
  with their output rows, and the next engine takes them over. What had its rows in the sink is found there. What is
  lost is delivered again once its lock has ended, with a higher count;
- after the append, before dead letters are written: the next engine finds them announced, and writes them, or keeps
  them for the next that has a target;
- before or during delivery: as before the append; the traces of the workers show which records were entered;
- inside the commit of the output: it is there or it is not, and the acknowledgements with it. A live engine that does
  not know which does nothing more: what it gives back might be decided already.
An append whose outcome is unknown is looked up by its stamp; the live state is rebuilt from the log before going on.
If it has not happened it may still land, so it is repeated as it was (readers count it once), or the engine ends.
Settings may change between a decision and its repetition: the log has states, counts and deadlines, and no state is
folded by settings. So a micro-batch decides by one reading of them, and its append stays valid.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from share_spark.engine.acquisition_limits import AcquisitionLimits
from share_spark.engine.answers import errors_in, refuse_errors
from share_spark.engine.attempts import MemberTrace
from share_spark.engine.busy_partitions import BusyPartitions
from share_spark.engine.client_asks import ClientAsks
from share_spark.engine.handler_calls import HandlerCalls, Phase, Turn
from share_spark.engine.outage import Outage, Reach
from share_spark.engine.output_commits import OutputCommits
from share_spark.engine.pauses import NOT_PAUSED, Pauses
from share_spark.engine.pending import NOTHING_PENDING, DeadLetterOrder, PendingAcknowledgements, UnresolvedAppend
from share_spark.engine.planning import PlanInputs, Search, is_done, plan, targets_of, targets_within, truncated_logs
from share_spark.engine.ports import Claim
from share_spark.engine.progress import EngineLook, MicroBatchProgress, StepTimer, lag_of
from share_spark.engine.step import PartitionInput, PartitionOutcome, PartitionSummary
from share_spark.engine.takeover import EarlierLocks, taken_over
from share_spark.engine.topics import LogEndsByKey, warn_of_truncations
from share_spark.engine.world import EngineTime, Ports
from share_spark.model.config import BackoffPolicy, DeliveryOrder, GroupConfig
from share_spark.model.errors import FencedError, StateError, TopicUnreachableError
from share_spark.model.ids import BatchStamp, SharePartitionKey, TopicPartition
from share_spark.partition import PartitionLimits

_log = logging.getLogger(__name__)

_COMMIT_ATTEMPTS = 3


@dataclass(slots=True, kw_only=True)
class ShareGroupEngine:
    """The engine of one share group: call ``start`` once, then ``run`` per micro-batch, never two at a time.

    Mutable by nature: it remembers the summaries of its share-partitions and the acknowledgements not committed yet.
    """

    ports: Ports
    available_now: bool = False
    _claim: Claim | None = None
    _summaries: dict[SharePartitionKey, PartitionSummary] = field(default_factory=dict)
    _pending: PendingAcknowledgements = NOTHING_PENDING
    _left_rows: PendingAcknowledgements = NOTHING_PENDING
    _unresolved: UnresolvedAppend | None = None
    _letters: DeadLetterOrder = field(init=False)
    _output: OutputCommits = field(init=False)
    _reach: Reach = field(init=False)
    _search: Search = field(default_factory=Search)
    _config: GroupConfig = field(init=False)
    _limits: AcquisitionLimits = field(default_factory=AcquisitionLimits)
    _pauses: Pauses = NOT_PAUSED
    _paused: frozenset[SharePartitionKey] = frozenset()
    _targets: Mapping[SharePartitionKey, int] | None = None
    _time: EngineTime = field(default_factory=EngineTime)
    _earlier_locks: EarlierLocks = field(init=False)
    _truncated: Mapping[TopicPartition, int] = field(default_factory=dict)
    _calls: HandlerCalls = field(init=False)
    _asks: ClientAsks = field(init=False)
    _first: bool = True
    _load_s: float = 0.0
    _busy: BusyPartitions = field(default_factory=BusyPartitions)

    def __post_init__(self) -> None:
        self._letters = DeadLetterOrder(sink=self.ports.dead_letters)
        self._output = OutputCommits(sink=self.ports.sink)
        self._reach = Reach(topics=self.ports.topics, letters=self.ports.dead_letters, clock=self.ports.clock)
        self._asks = ClientAsks(self.ports.clients)
        self._calls = HandlerCalls(delivery=self.ports.delivery, limits=self._limits, search=self._search)

    def start(self) -> Claim:
        """Claim the group, rebuild its state, take over what the engine before left unfinished, note the targets of an
        available-now run.

        Raises TopicError, StateError, FencedError, SinkError, DeadLetterError; then nothing but the claim is written.
        """
        self.ports.topics.refresh()
        self.ports.topics.check_identity(self.ports.store.known_topics())
        self._claim = claim = self.ports.store.claim()
        self._config = self.ports.config()
        timer = StepTimer()
        self._summaries = dict(self.ports.store.load())
        self._load_s = timer.mark("load")
        self._time.start(self.ports.clock(), self.ports.store.last_time_ms)
        self._earlier_locks = EarlierLocks.of(self._summaries.values(), self.ports.delivery)
        ends = self.ports.topics.log_ends()
        self._take_over(claim, truncated_logs(self._summaries, ends))
        if self.available_now:
            self._targets = targets_of(ends)
        return claim

    def _take_over(self, claim: Claim, truncated: Mapping[TopicPartition, int]) -> None:
        counted = self.ports.store.last_counted
        self.ports.delivery.start(claim)
        self.ports.dead_letters.recover(claim, counted, truncated)
        left = self.ports.sink.claim(claim, counted) if self.ports.sink is not None else None
        in_sink = NOTHING_PENDING
        if left is not None and left.stamp >= counted:
            _log.info("output of the engine before is committed; its acknowledgements count")
            in_sink = PendingAcknowledgements(spans=left.answers, member_id=left.member_id)
        self._pending, self._left_rows = taken_over(self.ports, self._summaries, in_sink, decides=self._output.decides)

    def _commit_left_rows(self, stamp: BatchStamp, timer: StepTimer) -> MicroBatchProgress:
        """Commit the output rows that were taken over, before anything is decided that could end the locks of their
        records. The next micro-batch absorbs them."""
        left, self._left_rows = self._left_rows, NOTHING_PENDING
        if self._output.commit_left(stamp, left.spans, left.member_id):
            self._pending = left
        timer.mark("output")
        return self._progress(stamp.batch_id, (), timer, self.ports.topics.last_ends)

    def look(self) -> EngineLook:
        """Return a look at the engine. Safe from any thread: a dict copy and an attribute read are atomic."""
        return EngineLook(
            writer_epoch=self._claim.writer_epoch if self._claim is not None else 0,
            load_s=self._load_s,
            read_at_ms=self._time.clock_ms,
            summaries=self._summaries.copy(),
            ends=self.ports.topics.last_ends,
            pauses=self._pauses,
            breaker=self._limits.breaker,
            outage=self._reach.outage,
            calls=self._calls.look(),
        )

    @property
    def outage(self) -> Outage | None:
        """The present outage, None if the topics answer."""
        return self._reach.outage

    def stop_waiting(self) -> None:
        """Stop waiting for what does not answer: the engine stops. From any thread."""
        self.ports.topics.log.stop_waiting()
        self.ports.delivery.stop_waiting()
        self._asks.stop_waiting()

    @property
    def has_state(self) -> bool:
        """True if the group had any state when this engine started, or has some now."""
        return bool(self._summaries)

    @property
    def done(self) -> bool:
        """True if an available-now run has finished everything below its targets, and committed that. It does not wait
        for what is paused."""
        if self._targets is None or self._pending or self._calls.in_flight or not self.ports.dead_letters.is_settled():
            return False
        return is_done(self._summaries, self._targets, self._paused)

    @property
    def has_calls(self) -> bool:
        """True if calls of handlers are in flight between micro-batches."""
        return self._calls.in_flight > 0

    def wait_for_answers(self, seconds: float) -> None:
        """Wait until one of these calls has ended, at most so long."""
        self.ports.delivery.wait(seconds)

    @property
    def waits_for_letters(self) -> bool:
        """True if an available-now run may be done as soon as its dead letters are written."""
        return self._targets is not None and not self.ports.dead_letters.is_settled()

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which the next lock of an engine that has ended expires, if there is one."""
        return min((one.next_deadline_ms for one in self._summaries.values() if one.next_deadline_ms), default=None)

    def run(self, batch_id: int, *, stopping: bool = False) -> MicroBatchProgress:
        """Run one micro-batch. With ``stopping`` it commits what is known, gives the rest back, and acquires nothing;
        before that, if calls are in flight, another one waits for them.

        Raises FencedError, TopicError, HandlerError, SinkError, DeadLetterError, StateError; the engine must then be
        thrown away, after a last call with ``stopping`` unless it was fenced.
        """
        if not stopping:
            return self._run(batch_id, Phase.RUNS)
        if self._calls.in_flight:
            self._run(batch_id, Phase.DRAINS)
            batch_id += 1
        return self._run(batch_id, Phase.STOPS)

    def _run(self, batch_id: int, phase: Phase) -> MicroBatchProgress:
        self._output.refuse_if_in_doubt()
        timer = StepTimer()
        if self._unresolved is not None:
            self._settle(self._unresolved)
        assert self._claim is not None, "run before start"
        stamp = BatchStamp(self._claim.writer_epoch, batch_id)
        if self._left_rows and phase is not Phase.STOPS:
            return self._commit_left_rows(stamp, timer)
        inputs = self._read_inputs(phase)
        most = self._calls.most_records(inputs, self._config) if phase is Phase.RUNS and not self._reach.outage else 0
        inputs, most = self._limits.shared(inputs, most, self._config)
        partition_inputs = plan(
            inputs, self._summaries, max_records=most, max_record_locks=self._config.max_record_locks
        )
        self._truncate(inputs, partition_inputs)
        timer.mark("plan")
        has_work = partition_inputs or self._first or self._asks.concern_group
        outcomes = self._decide_and_commit(stamp, partition_inputs, timer) if has_work else ()
        self._asks.answer(outcomes, self.ports.store.group)
        self._first = False
        self._earlier_locks.forget(self._time.now_ms, self.next_deadline_ms)
        are_suspects = any(partition_input.suspects for partition_input in partition_inputs.values())
        if most:  # else nobody had a turn
            self._search.comes_next = not are_suspects
        in_turn = are_suspects and inputs.suspects is not None and inputs.suspects.in_turn
        turn = Turn(stamp, inputs.now_ms, self._config, are_suspects, in_turn)
        self._deliver(turn, outcomes, timer, phase)
        progress = self._progress(batch_id, outcomes, timer, inputs.ends)
        self._limits.acquired(progress.acquired)
        return progress

    def _progress(
        self, batch_id: int, outcomes: Sequence[PartitionOutcome], timer: StepTimer, ends: LogEndsByKey
    ) -> MicroBatchProgress:
        return MicroBatchProgress.of(
            batch_id,
            self._time.now_ms,
            outcomes,
            share_partitions=len(self.ports.topics.last_ends),
            lag=lag_of(self._summaries, ends),
            steps=timer.steps,
            errors=errors_in(self._pending.spans),
        )

    def close(self) -> None:
        """Free what is kept, and wait for writes, after the last micro-batch. Raises DeadLetterError."""
        self.ports.delivery.close()
        self._reach.wait_for_letters()

    def _deliver(self, turn: Turn, outcomes: Sequence[PartitionOutcome], timer: StepTimer, phase: Phase) -> None:
        """Deliver, and keep the answers that are there. Raises the fault of the delivery after that: the rest was never
        entered. If records cannot be reached, that is no fault, and the answers are valid."""
        assert self._claim is not None, "deliver before start"
        calls, member_id, drains = self._calls, self._claim.member_id, phase is Phase.DRAINS
        answered = calls.drain(turn, member_id) if drains else calls.deliver(turn, outcomes, member_id)
        if answered is None:
            return
        timer.mark("deliver")
        fault = answered.delivered.fault
        if fault is not None and not isinstance(fault, TopicUnreachableError):
            self._pending = NOTHING_PENDING if self._output.decides else answered.pending
            raise fault
        calls.take_in(turn, answered)
        self._pending = answered.with_output(self._output, turn.stamp)
        timer.mark("output")
        if fault is not None:
            self._reach.lost(fault, self.ports.clock(), self._config.outage_timeout_ms)

    def _read_inputs(self, phase: Phase) -> PlanInputs:
        now_ms = self._time.read(self.ports.clock())
        topics = self.ports.topics
        limit_ms = self._config.outage_timeout_ms
        all_ends = self._reach.log_ends(limit_ms) if phase is Phase.RUNS else self._reach.last_ends()
        changed_ends = self._busy.read(all_ends)
        self._asks.note_logs(changed_ends)
        self._targets = targets_within(self._targets, changed_ends)
        if phase is Phase.RUNS:
            self._config = self.ports.config()
            self._look_at_pauses(topics.names(), all_ends, now_ms)
        asked = self._asks.take(all_ends, self._paused, self._config) if phase is Phase.RUNS else self._asks.leave()
        ends = self._busy.ends(self._summaries, self._pending.ranges.keys() | asked.keys())
        ends, initial_offsets = self._reach.beginnings(self._summaries, ends, self._config.offset_reset, limit_ms)
        traces = self._traces({**ends, **self._pending.ranges})  # before the search: they show how it has to be done
        config, keys = self._config, ends.keys() - self._paused if self._paused else ends.keys()
        return PlanInputs(
            now_ms=now_ms,
            topics=topics.names(),
            ends=ends,
            initial_offsets=initial_offsets,
            acknowledged=self._pending.ranges,
            delays=self._pending.delays_at(now_ms),
            errors=self._pending.errors() if config.history_retention_ms else {},
            has_backoff=config.backoff_policy != BackoffPolicy.NONE,
            targets=self._targets,
            stopping=phase is Phase.STOPS,
            acknowledged_by=self._pending.member_id,
            suspects=self._search.next_piece(self._summaries, keys),
            suspects_rest=now_ms < self._search.rests_until_ms,
            paused=self._paused,
            suspects_next=self._search.comes_next,
            traces=traces,
            ordered=config.delivery_order == DeliveryOrder.KEY,
            turn=self._search.turn,
            asked=asked,
        )

    def _look_at_pauses(self, names: Mapping[str, str], ends: Iterable[SharePartitionKey], now_ms: int) -> None:
        """Read the pauses. Nothing is acquired of a paused share-partition; what handlers already have is finished."""
        pauses = self.ports.pauses().at(now_ms)
        if pauses != self._pauses:
            _log.info("paused now: %s", pauses)
        self._pauses, self._paused = pauses, pauses.held(ends, names, now_ms)

    def _traces(self, ends: Iterable[SharePartitionKey]) -> Sequence[MemberTrace]:
        """Return traces when locks end that may not be ours. Where earlier engines left none, the next leaves none."""
        deadlines = [self._summaries[key].next_deadline_ms for key in ends if key in self._summaries]
        traces = self._earlier_locks.traces(self._time.now_ms, deadlines)
        if traces is None:
            return ()
        self._search.one_by_one |= not traces
        return traces

    def _truncate(self, inputs: PlanInputs, partition_inputs: Mapping[SharePartitionKey, PartitionInput]) -> None:
        """Tell the dead letters of truncations before the commit: once the state has one, no engine finds it again."""
        # A truncated log always makes an input, so the other share-partitions, which may be many, are not looked at.
        ends = {key: inputs.ends[key] for key in partition_inputs if key in inputs.ends}
        self._truncated = truncated = truncated_logs(self._summaries, ends)
        if truncated:
            warn_of_truncations(partition_inputs, self._summaries)
            self.ports.dead_letters.truncate(truncated)

    def _decide_and_commit(
        self, stamp: BatchStamp, partition_inputs: Mapping[SharePartitionKey, PartitionInput], timer: StepTimer
    ) -> Sequence[PartitionOutcome]:
        self._letters.withdraw()
        limits, store, now_ms, refusal = PartitionLimits.of(self._config), self.ports.store, self._time.now_ms, ""
        for _ in range(_COMMIT_ATTEMPTS):
            records = self._asks.decide_group(self.ports.topics.group_id, store.group)
            outcomes = store.advance(
                partition_inputs, limits=limits, batch_id=stamp.batch_id, now_ms=now_ms, group_records=records
            )
            timer.mark("decide")
            refuse_errors(outcomes)
            self._letters.announce(stamp, [letter for one in outcomes for letter in self._pending.dead_letters(one)])
            refusal = self._commit(stamp)
            if not refusal:
                timer.mark("append")
                self._absorbed(outcomes)
                self._letters.write(stamp)
                timer.mark("dead letters")
                return outcomes
        raise StateError(f"the state log refused micro-batch {stamp.batch_id} {_COMMIT_ATTEMPTS} times: {refusal}")

    def _absorbed(self, outcomes: Sequence[PartitionOutcome]) -> None:
        """Note that the pending acknowledgements are in the state. If none has changed it, there may be no row."""
        self._letters.committed()
        had_answers, self._pending = bool(self._pending), NOTHING_PENDING
        self._summaries.update({outcome.key: outcome.summary for outcome in outcomes})
        self._busy.decided(outcome.key for outcome in outcomes)
        if had_answers and (not outcomes or any(outcome.changed for outcome in outcomes)):
            self._output.absorbed()
        if self._truncated:  # before anything is acquired at the removed offsets
            self._calls.forget(self._truncated)
            self._truncated = {}

    def _commit(self, stamp: BatchStamp) -> str:
        """Return why the commit has not happened, "" if it has."""
        try:
            self.ports.store.commit()
            self._unresolved = None
            return ""
        except FencedError:
            raise
        except Exception as fault:  # noqa: BLE001 - the outcome is unknown: only the log can say
            refusal = str(fault).partition("\n")[0] or type(fault).__name__
            _log.warning("append of micro-batch %s failed (%s); asking the log", stamp.batch_id, refusal)
            self._unresolved = UnresolvedAppend(stamp=stamp)
            return "" if self._resolve(self._unresolved) else refusal

    def _resolve(self, append: UnresolvedAppend) -> bool:
        """Return whether the append happened. Until that is known, nothing may be decided on the state before it. What
        has not happened may still land: until it is repeated, nothing else may be appended."""
        happened = append.has_happened(self.ports.store)
        self._summaries = dict(self.ports.store.load())
        self._busy.loaded()
        if happened:
            self._unresolved = None
        return happened

    def _settle(self, append: UnresolvedAppend) -> None:
        """Absorb an append that happened. Raises StateError if it has not, or not yet: no lock can be given back."""
        if not self._resolve(append):
            raise StateError(f"the append of micro-batch {append.stamp.batch_id} may still land; nothing is given back")
        self._absorbed(())
