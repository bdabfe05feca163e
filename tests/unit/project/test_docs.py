"""The documents agree with each other and with the code: links, names, counts, and the rules that are cited."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import share_spark
from tests.chaos.faults import POINTS
from tests.kafka import test_kafka_judges as judges
from tests.simulation import test_late_calls, test_outside_members, test_simulation
from tests.support.python_blocks import python_blocks
from tests.support.reference import REFERENCE, reference

ROOT = Path(__file__).parents[3]
RULES = ROOT / "docs" / "rules.md"
CITATION = re.compile(r"\b([RO])(\d{1,3})(?:-\1(\d{1,3}))?\b")
DEFINITION = re.compile(r"^- \*\*([RO]\d+)\*\*", re.MULTILINE)
SUFFIXES = {".py", ".md", ".txt"}
DOCUMENTS = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))


def sources() -> Iterator[Path]:
    yield ROOT / "README.md"
    for folder in ("share_spark", "tests", "docs"):
        yield from (path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES)


def cited(text: str) -> Iterator[str]:
    """Each rule of the text; ``R12-R15`` cites four."""
    for letter, first, last in CITATION.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{letter}{number}"


def defined() -> list[str]:
    return DEFINITION.findall(RULES.read_text(encoding="utf-8"))


def without_gaps_named_in_the_preamble(path: Path) -> str:
    """The preamble of the rules names those that are left out."""
    text = path.read_text(encoding="utf-8")
    return text.partition("\n## ")[2] if path == RULES else text


def test_the_reference_is_that_of_the_code() -> None:
    """``python -m tests.support.reference`` writes it."""
    assert REFERENCE.read_text(encoding="utf-8") == reference()


def without_code(path: Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_the_readme_is_a_front_page() -> None:
    assert len(without_code(ROOT / "README.md").split()) <= 900


def anchors(path: Path) -> set[str]:
    """Those that GitHub gives the titles of a document; mkdocs.yml asks for the same."""
    titles = re.findall(r"^#+ (.*)$", without_code(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s:]*)(?:#([^)]*))?\)", without_code(path)):
        place = path.parent / target if target else path
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), f"{target}#{anchor}"


def test_the_api_has_each_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: share_spark\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(share_spark.__all__)


def test_how_much_is_tested_is_counted() -> None:
    convicted: tuple[Any, ...] = (
        test_simulation.test_a_wrong_engine_is_convicted,
        test_late_calls.test_what_is_wrong_is_convicted,
        test_outside_members.test_what_is_wrong_is_convicted,
    )
    cases = sum(len(test.pytestmark[0].args[1]) for test in convicted)
    asked, failed = sum(judges.TESTS.values()), sum(map(len, judges.FAIL.values()))
    text = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    assert f"| {cases} cases of engines" in text
    assert f"| at {len(POINTS)} points of the micro-batch" in text
    assert f"| {asked}, unmodified, with" in text
    assert f": {asked - failed} pass, {failed} do not" in text


def test_excerpts_are_in_the_code() -> None:
    """The first line of each names its file."""
    excerpts = python_blocks((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert excerpts
    for excerpt in excerpts:
        place, _, code = excerpt.removeprefix("# ").partition("\n")
        assert code in (ROOT / place).read_text(encoding="utf-8"), excerpt


def test_a_citation_of_a_range_cites_all_of_it() -> None:
    assert list(cited("(R12-R15, O7)")) == ["R12", "R13", "R14", "R15", "O7"]


def test_no_rule_stands_there_twice() -> None:
    assert [rule for rule, times in Counter(defined()).items() if times > 1] == []


def test_every_cited_rule_is_written_down() -> None:
    known = set(defined())
    missing = {
        f"{path.relative_to(ROOT)}: {rule}"
        for path in sources()
        for rule in cited(without_gaps_named_in_the_preamble(path))
        if rule not in known
    }
    assert sorted(missing) == []


DESIGN = ROOT / "docs" / "design.md"
MODULE = re.compile(r"`(\w+/\w+\.py)`")


def test_modules_that_the_design_names_are_there() -> None:
    named = set(MODULE.findall(DESIGN.read_text(encoding="utf-8")))
    assert named
    assert [name for name in sorted(named) if not (ROOT / "share_spark" / name).exists()] == []


TESTS = ROOT / "tests" / "README.md"
SUPPORT = ROOT / "tests" / "support"


def test_test_files_that_documents_name_are_there() -> None:
    for path in (ROOT / "README.md", TESTS, *sorted((ROOT / "docs").glob("*.md"))):
        named = re.findall(r"(?<![\w/])(?:tests|share_spark)/[\w/]+(?:\.\w+)?", path.read_text(encoding="utf-8"))
        assert [name for name in named if not (ROOT / name).exists()] == [], path.name


def test_the_readme_of_the_tests_names_each_package_and_each_support_module() -> None:
    text = TESTS.read_text(encoding="utf-8")
    packages = {path.parent.name for path in (ROOT / "share_spark").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == packages
    modules = {path.stem for path in SUPPORT.glob("*.py")} - {"__init__"}
    assert sorted(re.findall(r"^- `(\w+)`: ", text, re.MULTILINE)) == sorted(modules)
