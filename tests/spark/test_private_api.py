"""Canaries: every use of private API, tried for real on the installed versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark import cli
from share_spark.cli.stored import NOT_TRIED
from share_spark.spark.capabilities import ALL, Capability
from share_spark.spark.probes import Place, prepared, probe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    directory: Path = tmp_path_factory.mktemp("private_api")
    return prepared(spark, str(directory))


@pytest.mark.parametrize("capability", ALL, ids=lambda one: one.name.replace(" ", "_"))
def test_it_is_there_and_does_what_it_did(place: Place, capability: Capability) -> None:
    probe(capability, place)


@pytest.mark.slow
def test_the_doctor_finds_all_of_it(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--spark"]) == 0
    out = capsys.readouterr().out
    assert NOT_TRIED not in out
    lines = out.partition("\n\n")[2].splitlines()
    assert len(lines) == len(ALL)
    assert [line for line in lines if " available  " not in line] == []
