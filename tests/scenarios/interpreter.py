"""A small language to talk to a share-partition, so that a scenario file reads as a conversation.

Commands, one a line; ``#`` begins a comment line:

    start 100 [limit=5] [locks=2000] [lock=30000]   a new share-partition whose SPSO is 100
    fetch c1 100-109 110-112 [max=10] [mode=batch_optimized|record_limit]   the ranges are log batches; else by offsets
    ack c1 100-109 accept, 110 release             accept, release, reject, gap, renew; one word, or one per offset
    leave c1                                       its share session is closed
    advance 30000                                  milliseconds pass, locks end
    log-start 105                                  the log begins here now
    state                                          show the window
    recover                                        restore from the log of records; is it the live state?
    fail-over                                      another leader loads the KIP's durable form: show its window
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from share_spark.coordinator import combine_batches
from share_spark.model.records import StateBatch
from share_spark.model.requests import ArchivedRange, PartitionResponse
from share_spark.partition import kip_batches, restore
from share_spark.partition.kafka_modes import AcquireMode, KafkaLimits, load_from_kip
from tests.support.kafka_partition import ClientPartition
from tests.support.share_partition import KEY

ACK_TYPES = {"gap": 0, "accept": 1, "release": 2, "reject": 3, "renew": 4}
STATES = {0: "V", 2: "D", 4: "X"}


class Interpreter:
    """One share-partition, and the durable form a Kafka share coordinator would hold of it."""

    def __init__(self) -> None:
        self.partition = ClientPartition()
        self.durable: tuple[StateBatch, ...] = ()

    def run(self, line: str) -> list[str]:
        """The output of one command."""
        name, *words = line.split()
        handler: Callable[..., Iterator[str]] | None = getattr(self, f"do_{name.replace('-', '_')}", None)
        if handler is None:
            return [f"unknown command {name!r}"]
        return list(handler(words))

    def do_start(self, words: list[str]) -> Iterator[str]:
        plain, options = options_of(words)
        limits = KafkaLimits(
            max_delivery_count=int(options.get("limit", "5")),
            max_record_locks=int(options.get("locks", "2000")),
            lock_duration_ms=int(options.get("lock", "30000")),
        )
        self.partition = ClientPartition(start=int(plain[0]), limits=limits)
        self.durable = ()
        yield from self.shown()

    def do_fetch(self, words: list[str]) -> Iterator[str]:
        plain, options = options_of(words)
        got = self.partition.fetch(
            plain[0],
            *(range_of(word) for word in plain[1:]),
            most=int(options.get("max", "1000000")),
            mode=AcquireMode(options["mode"]) if "mode" in options else None,
        )
        yield "acquired " + (", ".join(f"{text(f, t)} ({c})" for f, t, c in got) or "nothing")
        yield from self.shown()

    def do_ack(self, words: list[str]) -> Iterator[str]:
        member, *rest = words
        batches = []
        for part in " ".join(rest).split(","):
            offsets, *types = part.split()
            batches.append((*range_of(offsets), tuple(ACK_TYPES[word] for word in types)))
        yield from self.wrote(self.partition.answer(member, *batches))

    def do_leave(self, words: list[str]) -> Iterator[str]:
        yield from self.wrote(self.partition.release(words[0]))

    def do_advance(self, words: list[str]) -> Iterator[str]:
        yield from self.wrote(self.partition.advance(int(words[0])))

    def do_log_start(self, words: list[str]) -> Iterator[str]:
        yield from archived(self.partition.log_start(int(words[0])).archived)
        yield from self.shown()

    def do_state(self, _words: list[str]) -> Iterator[str]:
        yield from self.shown()

    def do_recover(self, _words: list[str]) -> Iterator[str]:
        equal = restore(self.partition.log) == self.partition.state
        yield "equals the live state" if equal else "differs from the live state"

    def do_fail_over(self, _words: list[str]) -> Iterator[str]:
        loaded = ClientPartition()
        loaded.remembered = load_from_kip(
            key=KEY,
            state_epoch=0,
            leader_epoch=1,
            start_offset=self.partition.state.start_offset,
            batches=self.durable,
        )
        yield loaded.window
        yield f"next fetch at {loaded.next_fetch_offset}"

    def shown(self) -> Iterator[str]:
        yield self.partition.window

    def wrote(self, answer: PartitionResponse) -> Iterator[str]:
        """The outcome, what of it the KIP's form takes up, and the window after."""
        if answer.error:
            yield answer.error.name
        yield from archived(answer.archived)
        record = self.partition.record
        if record is not None:
            new = kip_batches(record)
            start = self.partition.state.start_offset
            self.durable = combine_batches(self.durable, new, start)
            yield f"write {record.start_offset}; {', '.join(map(batch_text, new))}".rstrip("; ")
        yield from self.shown()


def archived(ranges: tuple[ArchivedRange, ...]) -> Iterator[str]:
    for first, last, count, reason in ranges:
        yield f"archived {text(first, last)} ({count}): {reason}"


def batch_text(batch: StateBatch) -> str:
    first, last, state, count = batch[:4]
    return f"{text(first, last)} {STATES[state]}{count}"


def text(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


def range_of(word: str) -> tuple[int, int]:
    first, _, last = word.partition("-")
    return int(first), int(last or first)


def options_of(words: list[str]) -> tuple[list[str], dict[str, str]]:
    plain = [word for word in words if "=" not in word]
    return plain, dict(word.split("=", 1) for word in words if "=" in word)
