from __future__ import annotations

from pathlib import Path

from share_spark.spark.worker_daemon import drop_archives


def install(site: Path, *packages: str) -> Path:
    for package in packages:
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").touch()
    return site


def archives(lib: Path) -> list[str]:
    return [str(lib / "pyspark.zip"), str(lib / "py4j-0.10.9.9-src.zip")]


def test_archives_go_where_pip_installed_the_same_pyspark(tmp_path: Path) -> None:
    site = install(tmp_path / "site", "pyspark", "py4j")
    jar = str(site / "pyspark/jars/spark-core_2.13-4.0.5.jar")
    path = ["", *archives(site / "pyspark/python/lib"), jar, str(site)]
    assert drop_archives(path) == ["", str(site)]


def test_archives_stay_where_they_belong_to_another_spark(tmp_path: Path) -> None:
    site = install(tmp_path / "site", "pyspark", "py4j")
    path = [*archives(tmp_path / "spark/python/lib"), str(site)]
    assert drop_archives(path) == path


def test_archives_stay_where_nothing_else_holds_pyspark(tmp_path: Path) -> None:
    path = [*archives(tmp_path / "spark/python/lib"), str(tmp_path)]
    assert drop_archives(path) == path


def test_archives_stay_where_py4j_is_missing(tmp_path: Path) -> None:
    site = install(tmp_path / "site", "pyspark")
    path = [*archives(site / "pyspark/python/lib"), str(site)]
    assert drop_archives(path) == path


def test_other_archives_stay(tmp_path: Path) -> None:
    site = install(tmp_path / "site", "pyspark", "py4j")
    path = [str(tmp_path / "handlers.zip"), str(site)]
    assert drop_archives(path) == path
