"""What the one session of the project brings along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from share_spark.spark.session import QUERY_LOGGER, build_session, mute_query_faults


def zip_importers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import sys
    from zipimport import zipimporter

    list(batches)
    found = [key for key, one in sys.path_importer_cache.items() if isinstance(one, zipimporter)]
    yield pa.RecordBatch.from_pydict({"path": pa.array(found, pa.string())})


def test_delta_is_on_board(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(10).write.format("delta").save(str(tmp_path / "table"))
    assert spark.read.format("delta").load(str(tmp_path / "table")).count() == 10


def test_the_kafka_source_is_on_board(spark: SparkSession) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "any"}
    columns = spark.read.format("kafka").options(**options).load().columns
    assert {"key", "value", "topic", "partition", "offset"} <= set(columns)


def test_workers_have_no_archive_to_read_again(spark: SparkSession) -> None:
    assert spark.range(0, 1, 1, 1).mapInArrow(zip_importers, "path string").collect() == []


def test_a_session_that_is_there_is_not_changed(spark: SparkSession) -> None:
    same = build_session("another", extra_conf={"spark.sql.shuffle.partitions": "77"})
    assert same is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_the_end_of_a_query_is_left_to_who_reports_it(spark: SparkSession) -> None:
    """Beneath spark-submit Spark's own settings would log it with two stack traces."""
    log4j = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    configurator = log4j.core.config.Configurator
    configurator.setLevel(QUERY_LOGGER, log4j.Level.ERROR)
    mute_query_faults(spark)
    assert str(log4j.LogManager.getLogger(QUERY_LOGGER).getLevel()) == "OFF"
