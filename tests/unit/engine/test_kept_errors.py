"""How much of the errors of a micro-batch the log keeps."""

from __future__ import annotations

from share_spark.engine.attempts import MOST_TEXT, ErrorRun, kept_errors
from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.model.ids import SharePartitionKey, TopicPartition

KEY, OTHER = (SharePartitionKey("g", "tid", partition) for partition in (0, 1))


def kept(errors: list[ErrorRun], others: list[ErrorRun] | None = None) -> list[list[ErrorRun]]:
    """Of two share-partitions, or of one and one without errors."""
    said = {KEY: errors, OTHER: others or []}
    spans = {key: AcknowledgedSpan(TopicPartition("t", key.partition), (), runs) for key, runs in said.items()}
    found = kept_errors(spans)
    assert set(found) == {key for key, runs in said.items() if runs}
    return [list(runs) for runs in found.values()]


def test_what_is_not_too_much_is_kept_as_it_is_however_often_it_is_there() -> None:
    errors = [ErrorRun(at, at, "x" * 1_000) for at in range(0, 10_000, 2)]
    assert kept(errors, errors) == [errors, errors]


def test_numbers_and_ids_are_left_out_of_too_many() -> None:
    errors = [ErrorRun(at, at, f"order {at} of {'x' * 100}") for at in range(1_000)]
    assert kept([*errors, ErrorRun(1_001, 1_002, "busy")]) == [
        [ErrorRun(0, 999, f"order # of {'x' * 100}"), ErrorRun(1_001, 1_002, "busy")]
    ]


def test_of_what_is_still_too_much_the_most_frequent_is_kept() -> None:
    names = [f"{chr(97 + at // 26)}{chr(97 + at % 26)}" for at in range(400)]
    errors = [ErrorRun(at, at, name * 100) for at, name in enumerate(names)]
    frequent = ErrorRun(1_000, 1_999, "y" * 1_000)
    (found,) = kept([*errors, frequent])
    texts = {run.error for run in found}
    assert found[-1] == frequent
    assert found[0] == errors[0]
    whole = (MOST_TEXT - 1_000) // 200
    assert found[whole] == ErrorRun(whole, 399, f"one of {400 - whole} more errors, of which the text is not kept")
    assert sum(map(len, texts)) <= MOST_TEXT + 100
