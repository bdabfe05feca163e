"""What counts as a private API that is missing, and what is said of it."""

from __future__ import annotations

import logging

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from share_spark.cli.stored import doctor_lines
from share_spark.spark import capabilities
from share_spark.spark.capabilities import ALL, HADOOP_FILES, JVM_SIGNALS, Verdict, is_allowed, is_missing, use
from share_spark.spark.probes import PROBES


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(capabilities.PUBLIC_API_ONLY, raising=False)
    monkeypatch.setattr(capabilities, "_given_up", {})
    monkeypatch.setattr(capabilities, "_warned", set())


def absent() -> str:
    raise Py4JError(
        "An error occurred while calling o1.gone. Trace:\npy4j.Py4JException: Method gone([]) does not exist"
    )


@pytest.mark.parametrize(
    ("fault", "missing"),
    [
        (AttributeError("no _jvm"), True),
        (TypeError("'JavaPackage' object is not callable"), True),
        (TypeError("an integer is required"), False),
        (Py4JError("org.apache.spark.Gone does not exist in the JVM"), True),
        (Py4JError("Answer from Java side is empty"), False),
        (FileNotFoundError("file does not exist"), False),
    ],
)
def test_what_says_that_the_api_is_missing(fault: Exception, missing: bool) -> None:
    assert is_missing(fault) is missing


def test_a_missing_api_is_given_up_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert [use(JVM_SIGNALS, absent, lambda: "public") for _ in range(2)] == ["public", "public"]
    assert not is_allowed(JVM_SIGNALS)
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert "stops Spark in the middle of a micro-batch" in caplog.records[0].message


def test_a_slower_fallback_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert use(HADOOP_FILES, absent, lambda: "public") == "public"
    assert caplog.records == []


def test_a_fault_of_the_work_is_no_missing_api() -> None:
    with pytest.raises(ZeroDivisionError):
        use(HADOOP_FILES, lambda: 1 // 0, lambda: 0)
    assert is_allowed(HADOOP_FILES)


def test_the_switch_refuses_every_private_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(capabilities.PUBLIC_API_ONLY, "1")
    assert not any(is_allowed(one) for one in ALL)


def test_each_capability_has_its_own_name_and_a_probe() -> None:
    assert len({one.name for one in ALL}) == len(ALL)
    assert PROBES.keys() == {one.name for one in ALL}


def test_the_doctor_says_what_is_weaker() -> None:
    lines = doctor_lines([Verdict(capability=HADOOP_FILES), Verdict(capability=JVM_SIGNALS, reason="gone")])
    assert "available" in lines[0]
    assert "fallback" in lines[1]
    assert "weaker: a signal to the JVM" in lines[1]
