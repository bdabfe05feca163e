"""The style rules of the project that no linter has. Each message names file and line."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize("module", ["share_spark", "share_spark.spark.jars", "share_spark.spark.worker_daemon"])
def test_importing_it_does_not_import_pyspark(module: str) -> None:
    """The workers' daemon must run before pyspark is imported, and the package is imported before it."""
    code = f"import sys, {module}; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
