"""The package as users get it: a wheel and an sdist, installed into empty environments, with the README's program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from share_spark import __version__

ROOT = Path(__file__).parents[3]
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}

pytestmark = pytest.mark.long

QUEUE_WITHOUT_SPARK = """
from share_spark import EmbeddedTopicLog, Message
topics = EmbeddedTopicLog(None, "lake/topics")
topics.create_topic("orders", partitions=1)
topics.append("orders", [Message(b"9.50")])
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of both, built from what git has."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    run(sys.executable, "-m", "build", "--outdir", str(target), str(source))
    return target


def run(*command: str, at: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=at, env=CLEAN)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    return done.stdout


def wheel_in(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


class Environment:
    """An environment of its own, with the wheel and the extras."""

    def __init__(self, place: Path, built: Path, extras: str = "") -> None:
        self.bin = place / "bin"
        venv.create(place, with_pip=True)
        run(str(self.bin / "python"), "-m", "pip", "install", "--quiet", f"{wheel_in(built)}{extras}")

    def run(self, program: str, *arguments: str, at: Path) -> str:
        return run(str(self.bin / program), *arguments, at=at)


def test_what_is_built_is_well_described(built: Path) -> None:
    files = [str(path) for path in built.iterdir()]
    assert len(files) == 2
    assert run(sys.executable, "-m", "twine", "check", "--strict", *files).count("PASSED") == 2
    with zipfile.ZipFile(wheel_in(built)) as wheel:
        names = set(wheel.namelist())
        (metadata,) = (wheel.read(name).decode() for name in names if name.endswith("/METADATA"))
    data = {"py.typed", "spark/log4j2.properties", "web/page.css", "web/page.js"}
    assert {f"share_spark/{name}" for name in data} <= names
    assert not [name for name in names if name.startswith(("tests/", "jobs/"))]
    assert f"Version: {__version__}\n" in metadata
    required = re.findall(r"Requires-Dist: ([\w-]+)[^;\n]*\n", metadata)
    assert {"pyarrow", "deltalake"} <= set(required)
    assert not {"pyspark", "delta-spark"} & set(required)


def test_the_sdist_has_what_people_look_for(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "share_spark/web/page.js"} <= names


def test_without_extras_there_are_topics_and_tools(built: Path, tmp_path: Path) -> None:
    place = Environment(tmp_path / "env", built)
    (tmp_path / "first_queue.py").write_text(QUEUE_WITHOUT_SPARK)
    place.run("python", "first_queue.py", at=tmp_path)
    assert (tmp_path / "lake" / "topics" / "_delta_log").is_dir()
    assert "gateway" in place.run("share-spark", "--help", at=tmp_path)
    assert __version__ in place.run("python", "-c", "import share_spark; print(share_spark.__version__)", at=tmp_path)
    with pytest.raises(AssertionError, match=r"pip install 'share_spark\[spark\]'"):
        place.run(
            "python", "-c", "from share_spark import ShareGroup; ShareGroup('g', spark=None, state='s')", at=tmp_path
        )
    with pytest.raises(AssertionError, match="pyspark is not installed"):
        place.run("share-spark", "doctor", at=tmp_path)


def test_with_spark_the_program_of_the_readme_runs(built: Path, tmp_path: Path) -> None:
    place = Environment(tmp_path / "env", built, "[spark]")
    (program,) = re.findall(r"```python\n(# first\.py\n.+?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "first.py").write_text(program)
    printed = place.run("python", "first.py", at=tmp_path)
    assert re.findall(r"\d+\.\d", printed) == ["9.5", "12.0"]
    letters = place.run("share-spark", "dead-letters", "list", "--table", "lake/letters", at=tmp_path)
    assert "could not convert string to float" in letters
