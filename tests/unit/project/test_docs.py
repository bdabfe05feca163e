"""Every rule that is cited is written down once, in ``docs/rules.md``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.python_blocks import python_blocks
from tests.support.reference import REFERENCE, reference

ROOT = Path(__file__).parents[3]
RULES = ROOT / "docs" / "rules.md"
CITATION = re.compile(r"\b([RO])(\d{1,3})(?:-\1(\d{1,3}))?\b")
DEFINITION = re.compile(r"^- \*\*([RO]\d+)\*\*", re.MULTILINE)
SUFFIXES = {".py", ".md", ".txt"}


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


def test_the_readme_is_a_front_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_links_lead_somewhere() -> None:
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))):
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


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
