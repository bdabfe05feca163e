"""share_spark: a share group in Spark, with output and dead letters in Delta."""

from __future__ import annotations

from share_spark import Ack, Record, ShareGroup, build_session
from tests.scoreboard.programs.surroundings import GROUP, TOPIC, call, place, source
from tests.scoreboard.records import AT_A_TIME, LIMIT, LOCK_MS, OK


def handle(record: Record) -> tuple[Ack, dict[str, object]]:
    """Ask the service, and return a row."""
    number = int(record.value or b"")
    status = call(number, record.delivery_count)
    if status != OK:
        raise ConnectionError(f"the service answered {status}")
    return Ack.ACCEPT, {"number": number}


def main() -> None:
    """Run until killed."""
    query = (
        ShareGroup(GROUP, spark=build_session("scoreboard", "local[2]"), state=place("state"))
        .kafka(source())
        .subscribe(TOPIC)
        .process(handle, output="number bigint", threads=AT_A_TIME)
        .to_delta(place("rows"))
        .dead_letter(place("letters"))
        .option("share.auto.offset.reset", "earliest")
        .option("share.delivery.count.limit", LIMIT)
        .option("share.record.lock.duration.ms", LOCK_MS)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
