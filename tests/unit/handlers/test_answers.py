"""What handlers may return, and what becomes of it: one code per record, errors by number. No JVM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from share_spark.handlers.acknowledgement import Ack, Acknowledgement, Answers, single_answer
from share_spark.handlers.batch_answers import batch_answers
from share_spark.handlers.costs import cost_of
from share_spark.handlers.error_texts import ERROR_TEXT_LIMIT
from share_spark.model.errors import ConfigError, HandlerError
from share_spark.model.requests import AcknowledgeType, Loss

ACCEPT, RELEASE, REJECT = Ack


def answered(answers: Answers) -> list[Any]:
    """Codes, or (code, error) where there is an error."""
    texts = [None, *answers.texts]
    pairs = zip(answers.codes.tolist(), answers.error_ids.tolist(), strict=True)
    return [(code, texts[error]) if error else code for code, error in pairs]


def test_the_numbers_are_the_protocols() -> None:
    assert {ack.name: int(ack) for ack in Ack} == {
        name: int(AcknowledgeType[name]) for name in ("ACCEPT", "RELEASE", "REJECT")
    }


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (Ack.ACCEPT, (1, None, None)),
        (Ack.release("later"), (2, "later", None)),
        (Ack.reject("bad"), (3, "bad", None)),
        (Ack.release(delay=1.5), (2, None, 1_500)),
        (Ack.release("later", delay="10m"), (2, "later", 600_000)),
        (Ack.release(delay=0), (2, None, 0)),
        (Acknowledgement(Ack.REJECT, "bad", 5), (3, "bad", None)),
        (2, (2, None, None)),
        (np.int64(3), (3, None, None)),
        ("accept", (1, None, None)),
        ("REJECT", (3, None, None)),
    ],
)
def test_single_answers(value: object, answer: tuple[int, str | None, int | None]) -> None:
    assert single_answer(value) == answer


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "soon", "31d", None.__class__])
def test_what_is_no_delay(delay: Any) -> None:
    with pytest.raises(ConfigError, match=r"delay|duration"):
        Ack.release(delay=delay)


def test_a_delay_that_was_not_made_by_release_is_checked_as_well() -> None:
    with pytest.raises(HandlerError, match="delay_ms of -1, not 0 to 30 days"):
        single_answer(Acknowledgement(Ack.RELEASE, None, -1))


@pytest.mark.parametrize(
    "answer",
    [
        [Ack.release(delay=0.5), ACCEPT, RELEASE, Ack.release("x", delay="7ms")],
        pa.table({"ack": [2, 1, 2, 2], "delay_ms": [500, 9, None, 7]}),
        pd.DataFrame({"ack": [2, 1, 2, 2], "delay_ms": [500, 9, None, 7]}),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_delays_of_a_batch_are_those_of_its_releases(answer: Any) -> None:
    assert batch_answers(answer, 4).delays() == {0: 500, 3: 7}


def test_an_output_column_of_that_name_is_no_delay() -> None:
    answer = pa.table({"ack": [2, 1], "delay_ms": [0.5, 1.5]})
    assert batch_answers(answer, 2, ["delay_ms"]).delays() == {}


def test_one_delay_for_a_batch_and_none() -> None:
    assert batch_answers(Ack.release(delay=2), 2).delays() == {0: 2_000, 1: 2_000}
    assert batch_answers(pa.table({"ack": [2, 2], "delay_ms": pa.nulls(2)}), 2).delays() == {}
    assert batch_answers([2, 2], 2).delays_ms is None


def test_a_row_with_a_delay_that_is_none_is_released_without() -> None:
    answers = batch_answers(pa.table({"ack": [1, 2, 2, 2], "delay_ms": [-1, 10, None, -5]}), 4)
    assert (answers.codes.tolist(), answers.delays(), answers.misfits) == ([1, 2, 2, 2], {1: 10}, 1)
    assert answers.errors() == {3: "answered with a delay_ms of -5, not 0 to 30 days"}


def test_delays_of_parts_that_have_some_and_none() -> None:
    parts = [Answers.same(2, Ack.RELEASE), Answers.same(1, Ack.RELEASE, None, 5)]
    assert Answers.concatenated(parts).delays() == {2: 5}


@pytest.mark.parametrize(
    ("cost", "found"), [(812, 812.0), (0.5, 0.5), (0, 0.0), (np.float32(2), 2.0), (np.int8(3), 3.0)]
)
def test_an_acceptance_may_say_its_cost(cost: Any, found: float) -> None:
    answer = Ack.accept(cost=cost)
    assert single_answer(answer) == (1, None, None)
    assert cost_of(answer, ACCEPT) == found


@pytest.mark.parametrize("answer", [None, ACCEPT, 1, "accept", Acknowledgement(ACCEPT), Ack.release("later")], ids=str)
def test_other_answers_say_no_cost_but_that_a_throttled_call_costs_nothing(answer: Any) -> None:
    assert cost_of(answer, ACCEPT) is None
    assert cost_of(Ack.throttled(), Loss.THROTTLED) == 0.0


def test_costs_of_a_batch_are_those_of_its_acceptances() -> None:
    answers = batch_answers([Ack.accept(cost=5), ACCEPT, Ack.release("x"), Ack.accept(cost=-1), Ack.accept(cost=7)], 5)
    assert (answers.cost, answers.codes.tolist(), answers.misfits) == (12.0, [1, 1, 2, 2, 1], 1)
    assert batch_answers(Ack.accept(cost=100), 4).cost == 100.0, "of the batch as a whole"
    assert Answers.concatenated([answers, answers]).cost == 24.0


COSTS: list[tuple[Any, list[str | None]]] = [
    ([5, 0, 7, 9], [None] * 4),
    ([0.5, None, 7, None], [None, "None", None, None]),
    (pa.array([5, None, -1, -1], pa.int32()), [None, "None", "-1", None]),
    (pd.Series([5, float("nan"), float("inf"), None]), [None, "None", "inf", None]),
    (np.array([1.0, -0.5, np.inf, np.nan]), [None, "-0.5", "inf", None]),
    (pd.Series([True, "812", 10**400, "x"], dtype=object), ["True", "'812'", str(10**400)[:57] + "...", None]),
    (pa.nulls(4), ["None"] * 3 + [None]),
]


@pytest.mark.parametrize(("costs", "wrong"), COSTS, ids=str)
def test_costs_in_a_column(costs: Any, wrong: list[str | None]) -> None:
    """The last record is released, so nobody asks for its cost."""
    frame = pd.DataFrame({"ack": [1, 1, 1, 2], "cost": pd.Series(costs, dtype=getattr(costs, "dtype", object))})
    table = pa.table({"ack": [1, 1, 1, 2], "cost": costs}) if isinstance(costs, pa.Array) else frame
    answers = batch_answers(table, 4)
    texts = [one and f"accepted with a cost of {one}, not a number of 0 or more" for one in wrong]
    assert answered(answers) == [1 if text is None else (2, text) for text in texts[:3]] + [2]
    assert answers.misfits == len([text for text in texts if text])
    said = costs.to_pylist() if isinstance(costs, pa.Array) else list(costs)
    assert answers.cost == sum(cost for cost, text in zip(said[:3], texts, strict=False) if text is None)


@pytest.mark.parametrize("costs", [pa.array(["5"]), pa.array([True]), pa.array([b"5"])], ids=str)
def test_a_column_of_costs_has_numbers(costs: Any) -> None:
    with pytest.raises(HandlerError, match=r"^returned a column cost of type \w+, not numbers$"):
        batch_answers(pa.table({"ack": [1], "cost": costs}), 1)


def test_an_output_column_that_is_called_cost_is_no_cost() -> None:
    table = pa.table({"ack": [1, 1], "cost": ["much", "little"]})
    assert batch_answers(table, 2, ["cost"]).costs is None


@pytest.mark.parametrize("value", [True, 0, 4, "maybe", 1.0, object(), None])
def test_what_is_no_answer(value: object) -> None:
    with pytest.raises(HandlerError, match=r"which is not Ack\.ACCEPT, Ack\.RELEASE or Ack\.REJECT"):
        single_answer(value)


@pytest.mark.parametrize(
    "answer",
    [
        [ACCEPT, RELEASE, REJECT],
        (1, 2, 3),
        [ACCEPT, 2, "reject"],
        np.array([1, 2, 3]),
        np.array(["accept", "release", "reject"]),
        pa.array([1, 2, 3]),
        pa.array(["accept", "release", "reject"]),
        pa.chunked_array([[1], [2, 3]]),
        pa.array(["accept", "release", "reject"]).dictionary_encode(),
        pd.Series([1, 2, 3]),
        pd.Series([ACCEPT, RELEASE, REJECT], dtype=object),
        pd.Series(["accept", "release", "reject"], dtype="category"),
        pa.table({"ack": [1, 2, 3], "more": ["a", "b", "c"]}),
        pa.RecordBatch.from_pydict({"ack": [1, 2, 3]}),
        pd.DataFrame({"ack": [1, 2, 3]}),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_a_batch_may_answer_in_many_ways(answer: Any) -> None:
    assert answered(batch_answers(answer, 3)) == [1, 2, 3]


def test_one_answer_for_all() -> None:
    assert answered(batch_answers(Ack.release("database is down"), 2)) == [(2, "database is down")] * 2


@pytest.mark.parametrize(
    "answer",
    [
        [ACCEPT, Ack.release("later"), Ack.reject("bad"), Ack.release("later")],
        pa.table({"ack": [1, 2, 3, 2], "error": ["not kept", "later", "bad", "later"]}),
        pd.DataFrame({"ack": [1, 2, 3, 2], "error": [None, "later", "bad", "later"]}),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_errors_are_kept_once_and_never_for_accepted_records(answer: Any) -> None:
    answers = batch_answers(answer, 4)
    assert answered(answers) == [1, (2, "later"), (3, "bad"), (2, "later")]


def test_no_errors_at_all() -> None:
    assert answered(batch_answers(pa.table({"ack": [1, 3], "error": pa.nulls(2)}), 2)) == [1, 3]
    assert answered(batch_answers(pd.DataFrame({"ack": [1, 3], "error": [None, None]}), 2)) == [1, 3]
    assert answered(batch_answers([], 0)) == []
    assert answered(batch_answers(pd.Series([], dtype=float), 0)) == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "returned nothing: a batch handler returns one acknowledgement per row"),
        ([ACCEPT], "returned 1 acknowledgements for 2 records"),
        (pa.array([1, 2, 3]), "returned 3 acknowledgements for 2 records"),
        (np.array([True, True]), "acknowledgements of type bool"),
        (np.array([1.0, 2.0]), "acknowledgements of type double"),
        (pa.table({"value": [1, 2]}), "a table without a column ack \\(it has value\\)"),
        (pa.table({"ack": [1, 2], "error": [1, 2]}), "column error of type int64, not string"),
        (pa.table({"ack": [1, 2], "delay_ms": ["1s", "2s"]}), "column delay_ms of type string, not whole numbers"),
        ("accept", "returned 'accept', not one acknowledgement per row"),
        ({"ack": [1, 2]}, "not one acknowledgement per row"),
    ],
)
def test_broken_contracts(answer: Any, message: str) -> None:
    with pytest.raises(HandlerError, match=message) as caught:
        batch_answers(answer, 2)
    assert "\n" not in str(caught.value)


NULL = "returned no acknowledgement (null)"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (pa.array([1, None, 3]), NULL),
        (pd.Series([1, None, 3]), NULL),
        (pa.array(["accept", None, "reject"]), NULL),
        ([ACCEPT, None, REJECT], "answered None, which is not "),
        ([1, 9, 3], "answered 9, which is not "),
        (pa.array([1, 0, 3]), "answered 0, which is not "),
        ([1, True, 3], "answered True, which is not "),
        (pa.array(["accept", "drop", "reject"]), "answered 'drop', which is not "),
        (pa.table({"ack": [1, 7, 3], "error": [None, "mine", "bad"]}), "answered 7, which is not "),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_a_row_without_an_answer_is_released_and_the_others_keep_theirs(answer: Any, text: str) -> None:
    answers = batch_answers(answer, 3)
    assert answers.codes.tolist() == [1, 2, 3]
    assert answers.errors()[1].startswith(text)
    assert answers.misfits == 1


def test_long_errors_are_cut() -> None:
    (text,) = batch_answers(Ack.release("x" * 5000), 1).texts
    assert len(text) == ERROR_TEXT_LIMIT
    assert text.endswith("...")
