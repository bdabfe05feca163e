from __future__ import annotations

import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest

from share_spark.cli import FAILED, main
from share_spark.cli.stored import NOT_TRIED
from share_spark.spark import jars

WANTED = [("org.example", "thing", "1.0")]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARE_SPARK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A JAVA_HOME whose java does what a test writes into it."""
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(home))
    jars.require_java.cache_clear()
    yield home / "bin" / "java"
    jars.require_java.cache_clear()


def pretend(java: Path, script: str) -> None:
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize("printed", ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023-09-19'])
def test_java_that_spark_runs_on(java: Path, printed: str) -> None:
    pretend(java, f"echo '{printed}' >&2")
    assert jars.require_java() == str(java)


def test_old_java_is_named(java: Path) -> None:
    pretend(java, """echo 'java version "1.8.0_402"' >&2""")
    with pytest.raises(jars.JavaError, match=r"Java 17 is needed, but .* is version 8: install"):
        jars.require_java()


def test_no_java_says_what_to_install(java: Path) -> None:
    with pytest.raises(jars.JavaError, match="Java was not found: install a JDK or JRE 17"):
        jars.require_java()


def test_the_doctor_looks_at_the_installation_and_says_what_it_did_not_try(
    cache: Path, java: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fetches nothing, and starts no session: this Java could not."""
    pretend(java, """[ "$*" = -version ] && echo 'version "17.0.1"' >&2 && exit; exit 1""")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"Java                17 ({java})" in out
    assert f"pyspark {version('pyspark')} with delta-spark {version('delta-spark')}" in out
    assert "not here; the first session fetches them" in out
    assert out.endswith(f"{NOT_TRIED}\n")
    assert not cache.exists()


def test_the_doctor_names_what_keeps_a_session_from_starting(java: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == FAILED
    assert "Java                FAULT  Java was not found: install a JDK" in capsys.readouterr().out
    pretend(java, """echo 'version "1.8.0_402"' >&2""")
    assert main(["doctor", "--spark"]) == FAILED
    assert "FAULT  Java 17 is needed" in capsys.readouterr().out


def test_a_failed_download_leaves_nothing(cache: Path, java: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pretend(
        java,
        """[ "$1" = -version ] && echo 'version "17.0.1"' >&2 && exit
        echo ':: org.example#thing;1.0: not found ::'; exit 1""",
    )
    with pytest.raises(jars.JarsError, match=r"org\.example#thing;1\.0: not found"):
        jars._jars("set", WANTED, frozenset())
    assert list((cache / "jars").iterdir()) == []
    assert capsys.readouterr().err.count("\n") == 1


def test_callers_at_once_download_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def run_ivy(_work: Path, found: Path, module: str) -> None:
        runs.append(module)
        found.mkdir()
        (found / "thing-1.0.jar").touch()

    monkeypatch.setattr(jars, "_run_ivy", run_ivy)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: jars._jars("set", WANTED, frozenset()), range(8)))
    assert found == [[cache / "jars" / "set" / "thing-1.0.jar"]] * 8
    assert len(runs) == 1


def test_ivy_is_asked_for_what_pyspark_does_not_ship() -> None:
    module = ElementTree.fromstring(jars._ivy_module(WANTED, frozenset({"spark-core_2.13"})))
    assert [one.attrib["name"] for one in module.iter("dependency")] == ["thing"]
    assert [one.attrib["module"] for one in module.iter("exclude")] == ["spark-core_2.13"]


def test_shipped_names_have_no_version() -> None:
    assert {"spark-core_2.13", "hadoop-client-runtime", "py4j"} <= jars._shipped()


def test_an_unknown_set_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert jars.main(["engin"]) == 2
    assert "unknown: engin" in capsys.readouterr().err


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SHARE_SPARK_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert jars.cache_dir() == tmp_path / ".cache" / "share_spark"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert jars.cache_dir() == tmp_path / ".cache" / "share_spark"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert jars.cache_dir() == tmp_path / "xdg" / "share_spark"
    monkeypatch.setenv("SHARE_SPARK_CACHE", str(tmp_path / "own"))
    assert jars.cache_dir() == tmp_path / "own"


@pytest.mark.parametrize(
    ("spark", "delta", "module"), [("4.0.5", "4.0.1", "delta-spark_2.13"), ("4.2.1", "4.4.0", "delta-spark_4.2_2.13")]
)
def test_the_jars_are_of_the_releases_that_are_installed(
    monkeypatch: pytest.MonkeyPatch, spark: str, delta: str, module: str
) -> None:
    monkeypatch.setattr(jars, "version", {"pyspark": spark, "delta-spark": delta}.__getitem__)
    assert ("io.delta", module, delta) in jars._engine_coordinates()


def test_releases_that_do_not_go_together_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "version", {"pyspark": "4.0.5", "delta-spark": "4.4.0"}.__getitem__)
    with pytest.raises(jars.JarsError, match=r"pyspark 4\.0\.5 with delta-spark 4\.4\.0 is not supported: install"):
        jars.engine_tag()
