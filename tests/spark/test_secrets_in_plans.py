"""Kafka's secrets in what Spark tells of a query: plans, descriptions, errors. Nothing has to answer for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from share_spark.engine.ports import OffsetSpan
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.spark.session import DEFAULTS
from tests.unit.project.test_secrets import NOWHERE, PLANTED, SECRET

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


def shown(session: SparkSession, options: dict[str, str]) -> str:
    """A map of options as Spark prints it in a plan."""
    jvm: Any = session._jvm
    return str(session._jsparkSession.sessionState().conf().redactOptions(jvm.PythonUtils.toScalaMap(options)))


@pytest.mark.parametrize("kind", KINDS)
def test_spark_takes_them_for_secrets(users_session: SparkSession, kind: str) -> None:
    options = KafkaOptions.parse({"bootstrap.servers": NOWHERE, **PLANTED[kind]})
    for translated in (options.spark_sink(), options.spark_source()):
        assert SECRET in str(translated)
        assert SECRET not in shown(users_session, translated)


def test_a_write_does_not_show_them(users_session: SparkSession) -> None:
    """The key of a certificate: of all of them the one whose option's name Spark does not know."""
    options = KafkaOptions.parse({"bootstrap.servers": NOWHERE, "max.block.ms": "100", **PLANTED["key"]})
    letters = users_session.sql("SELECT CAST('a' AS BINARY) AS key, CAST('b' AS BINARY) AS value")
    with pytest.raises((PySparkException, Py4JError)) as caught:
        letters.write.format("kafka").options(**options.spark_sink()).option("topic", "t").save()
    assert SECRET not in str(caught.value)
    told = told_by(users_session)
    assert "KafkaSourceProvider" in told
    assert SECRET not in told


def test_a_read_does_not_show_them(users_session: SparkSession) -> None:
    log = KafkaTopicLog(KafkaOptions.parse({"bootstrap.servers": NOWHERE, **PLANTED["password"]}))
    plans = plans_of(log.read(users_session, [OffsetSpan("t", 0, 0, 9)], 2))
    assert "kafka" in plans
    assert SECRET not in plans


def test_our_own_session_hides_names_that_spark_does_not_know(spark: SparkSession) -> None:
    assert DEFAULTS[REDACTION].startswith(SPARKS_OWN)
    assert SECRET not in shown(spark, {"kafka.sasl.jaas.config": SECRET, "kafka.ssl.keystore.key": SECRET})
