"""Kafka's secrets in what Spark tells of a query: plans, descriptions, errors. Nothing has to answer for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from share_spark.engine.ports import OffsetSpan
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.spark.session import DEFAULTS
from tests.unit.test_secrets import NOWHERE, PLANTED, SECRET

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REDACTION = "spark.redaction.regex"
SPARKS_OWN = "(?i)secret|password|token|access[.]?key"
KINDS = [kind for kind in PLANTED if kind != "password of a key"]
"""Without that one: the files that it names are not there."""


@pytest.fixture
def users_session(spark: SparkSession) -> SparkSession:
    """A session that hides what Spark hides by default."""
    session = spark.newSession()
    session.conf.set("spark.sql.legacy.setCommandRejectsSparkCoreConfs", "false")
    session.conf.set(REDACTION, SPARKS_OWN)
    return session


def told_by(spark: SparkSession) -> str:
    """What Spark's UI shows of SQL executions and jobs so far; the stores are there without the UI."""
    session: Any = spark._jsparkSession
    executions = session.sharedState().statusStore().executionsList()
    jobs = session.sparkContext().statusStore().jobsList(None)
    ran = [executions.apply(i) for i in range(executions.size())]
    texts = [f"{one.description()} {one.details()} {one.physicalPlanDescription()}" for one in ran]
    return "\n".join([*texts, *(str(jobs.apply(i)) for i in range(jobs.size()))])


def plans_of(frame: DataFrame) -> str:
    execution: Any = frame._jdf.queryExecution()  # type: ignore[operator]
    return "\n".join((execution.toString(), execution.logical().toString(), execution.analyzed().prettyJson()))


def letters(session: SparkSession) -> DataFrame:
    return session.sql("SELECT CAST('a' AS BINARY) AS key, CAST('b' AS BINARY) AS value")


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_does_not_show_them(users_session: SparkSession, kind: str) -> None:
    options = KafkaOptions.parse({"bootstrap.servers": NOWHERE, "max.block.ms": "100", **PLANTED[kind]})
    with pytest.raises(PySparkException) as caught:
        letters(users_session).write.format("kafka").options(**options.spark_sink()).option("topic", "t").save()
    assert SECRET not in str(caught.value)
    told = told_by(users_session)
    assert "KafkaSourceProvider" in told
    assert SECRET not in told


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_does_not_show_them(users_session: SparkSession, kind: str) -> None:
    log = KafkaTopicLog(KafkaOptions.parse({"bootstrap.servers": NOWHERE, **PLANTED[kind]}))
    plans = plans_of(log.read(users_session, [OffsetSpan("t", 0, 0, 9)], 2))
    assert "kafka" in plans
    assert SECRET not in plans


def test_our_own_session_hides_names_that_spark_does_not_know(spark: SparkSession) -> None:
    assert DEFAULTS[REDACTION].startswith(SPARKS_OWN)
    jvm: Any = spark._jvm
    options = jvm.PythonUtils.toScalaMap({"kafka.sasl.jaas.config": SECRET, "kafka.ssl.keystore.key": SECRET})
    shown = spark._jsparkSession.sessionState().conf().redactOptions(options)
    assert SECRET not in shown.toString()
