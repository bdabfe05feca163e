"""The style rules of the project that no linter has. Each message names file and line."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "share_spark"

FUNCTION_LINES = 70
MODULE_LINES = {"share_spark": 400, "jobs": 400, "tests": 500}
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc"}
PURE = ("model", "partition", "coordinator")
IMPURE_MODULES = {
    *("os", "time", "random", "secrets", "threading", "socket", "logging", "subprocess", "asyncio"),
    *("io", "pathlib", "tempfile", "multiprocessing", "concurrent", "sqlite3", "urllib", "http"),
}

PRIVATE_API = {"_jvm", "_jsparkSession", "_jdf", "_jsc", "_jconf", "_gateway", "py4j"}
PRIVATE_API_PLACE = PACKAGE / "spark"

MAY_PRINT = {*(PACKAGE / "cli").glob("*.py"), PACKAGE / "spark" / "jars.py"}
LEFT_BEHIND = "FIX" + "ME"

# A docstring is a sentence or a noun phrase. With one of these it would be a fragment, or a question.
FRAGMENT_WORDS = {
    *(
        "that",
        "what",
        "whatever",
        "which",
        "who",
        "whoever",
        "whose",
        "how",
        "where",
        "wherever",
        "when",
        "while",
        "why",
    ),
    *("of", "in", "into", "inside", "outside", "on", "at", "by", "for", "from", "to", "with", "without", "within"),
    *("as", "like", "until", "since", "after", "before", "between", "beside", "besides", "beneath", "below", "above"),
    *("over", "under", "behind", "beyond", "through", "towards", "during", "because", "if", "unless", "although"),
    *("and", "or", "but", "so", "also", "too", "only", "not", "never", "always", "else", "then", "there", "perhaps"),
    *("is", "are", "was", "were", "has", "have", "had", "may", "can", "must", "does", "did", "would", "should"),
}


def modules(*folders: str) -> list[Path]:
    """Every Python file beneath the folders, as far as they exist."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def place(path: Path, node: ast.expr | ast.stmt) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def nodes(path: Path, *kinds: type[ast.AST]) -> Iterator[Any]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, kinds))


def imported(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    """Each import and the top name it imports from, in functions and under TYPE_CHECKING too."""
    for node in nodes(path, ast.Import, ast.ImportFrom):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
        yield from ((node, (name or "").split(".")[0]) for name in names)


def test_functions_are_short() -> None:
    long = [
        f"{place(path, node)} {node.name}: {length} lines"
        for path in modules("share_spark", "jobs", "tests")
        for node in nodes(path, ast.FunctionDef, ast.AsyncFunctionDef)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    ]
    assert long == []


def test_modules_are_short() -> None:
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in modules(*MODULE_LINES)}
    long = {str(path): n for path, n in lengths.items() if n > MODULE_LINES[path.parts[0]]}
    assert long == {}


def test_no_module_is_a_drawer() -> None:
    files = modules("share_spark", "jobs", "tests")
    drawers = [str(path) for path in files if DRAWERS & set(path.relative_to(ROOT).with_suffix("").parts)]
    assert drawers == []


def test_the_core_touches_nothing_outside_itself() -> None:
    impure = [
        f"{place(path, node)} imports {name}"
        for layer in PURE
        for path in modules(f"share_spark/{layer}")
        for node, name in imported(path)
        if name in IMPURE_MODULES or name not in {*sys.stdlib_module_names, "share_spark"}
        if (path, name) != (PACKAGE / "partition" / "columns.py", "numpy")
    ]
    assert impure == []


def test_private_api_is_used_in_one_package() -> None:
    """Of Spark, Delta, Hadoop and the JVM. The logger of py4j is no use of it."""
    used = [
        f"{path.relative_to(ROOT)}:{token.start[0]} {token.string}"
        for path in modules("share_spark", "jobs")
        if PRIVATE_API_PLACE not in path.parents
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type == tokenize.NAME and token.string in PRIVATE_API
    ]
    assert used == []


def test_only_commands_print() -> None:
    printing = [
        place(path, node)
        for path in modules("share_spark")
        if path not in MAY_PRINT
        for node in nodes(path, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


def test_nothing_is_left_to_be_fixed() -> None:
    left = [
        f"{path.relative_to(ROOT)}:{token.start[0]}"
        for path in modules("share_spark", "jobs", "tests")
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type == tokenize.COMMENT and LEFT_BEHIND in token.string
    ]
    assert left == []


def docstrings(of: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of modules, classes, functions and properties, and of assignments with a text below them."""
    for owner in ast.walk(of):
        body = getattr(owner, "body", None)
        for at, node in enumerate(body if isinstance(body, list) else ()):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    if at == 0 or isinstance(body[at - 1], ast.Assign | ast.AnnAssign):
                        yield node.lineno, text


def fragments(of: ast.Module) -> list[tuple[int, str]]:
    """Return (line, first word) for each docstring that begins with one of FRAGMENT_WORDS."""
    first_words = ((line, (re.findall(r"[\w'-]+|``.*?``", text) or [""])[0]) for line, text in docstrings(of))
    return [(line, word) for line, word in first_words if word.lower() in FRAGMENT_WORDS]


@pytest.mark.parametrize(
    "source",
    [
        '"""With one more observation."""',
        'class Kept:\n    """That are kept."""',
        'def ended():\n    """Of one group."""',
        'async def ended():\n    """Is it over?"""',
        'class Group:\n    @property\n    def paused(self):\n        """What of the group is paused."""',
        'LIMIT = 3\n"""In equal parts."""',
        'class Group:\n    limit: int = 3\n    """As a second ago at most."""',
    ],
)
def test_a_fragment_is_found(source: str) -> None:
    assert len(fragments(ast.parse(source))) == 1


def test_sentences_and_noun_phrases_are_no_fragments() -> None:
    source = (
        '"""The limits."""\nLIMIT = 3\n"""``limit`` of a group."""\ndef f():\n    """Return the limit."""\n    "in"'
    )
    assert fragments(ast.parse(source)) == []


def test_docstrings_are_no_fragments() -> None:
    """Except in the files for which ruff's rules for docstrings are off in pyproject.toml."""
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    exempt = [pattern for pattern, rules in ruff["per-file-ignores"].items() if "D401" in rules]
    checked = [
        path
        for path in modules("share_spark", "jobs")
        if not any(fnmatch(str(path.relative_to(ROOT)), pattern) for pattern in exempt)
    ]
    assert len(checked) > 10
    found = [
        f"{path.relative_to(ROOT)}:{line} begins with {word!r}"
        for path in checked
        for line, word in fragments(tree(path))
    ]
    assert found == []


@pytest.mark.parametrize("module", ["share_spark", "share_spark.spark.jars", "share_spark.spark.worker_daemon"])
def test_importing_it_does_not_import_pyspark(module: str) -> None:
    """The workers' daemon must run before pyspark is imported, and the package is imported before it."""
    code = f"import sys, {module}; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_what_is_imported_for_types_is_used_in_annotations_only() -> None:
    """Type checkers do not notice that it is not there when the program runs."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.id}"
        for path in modules("share_spark", "jobs")
        for node in _used_at_runtime(tree(path), _imported_for_types(tree(path)))
    ]
    assert found == []


def test_a_type_that_is_used_at_runtime_is_noticed() -> None:
    text = (
        "if TYPE_CHECKING:\n    from a import A, B, C\n"
        "def f(x: A) -> B:\n    y: A = x\n    return C(x)\n"
        "def g():\n    from a import B\n    return B()\n"
    )
    module = ast.parse(text)
    assert [(node.lineno, node.id) for node in _used_at_runtime(module, _imported_for_types(module))] == [(5, "C")]


def _imported_for_types(module: ast.Module) -> set[str]:
    blocks = (node for node in module.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return {name for block in blocks for node in block.body for name in _imported_in(node)}


def _imported_in(node: ast.AST) -> set[str]:
    return {name.asname or name.name for name in getattr(node, "names", ()) if isinstance(name, ast.alias)}


def _used_at_runtime(node: ast.AST, names: set[str]) -> Iterator[ast.Name]:
    """The uses of ``names`` in what runs: not in annotations, nor where a function imports them itself."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        names = names - {name for inner in ast.walk(node) for name in _imported_in(inner)}
    if isinstance(node, ast.Name) and node.id in names:
        yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _used_at_runtime(child, names)
