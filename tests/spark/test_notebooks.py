"""The notebooks run from top to bottom, and what their cells show can be shown."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("spark")
def test_a_notebook_runs(path: Path) -> None:
    header, *cells = path.read_text().split("# COMMAND ----------")
    assert header.startswith("# Databricks notebook source\n")
    known: dict[str, Any] = {"__name__": "__main__"}
    shown = [html_of(run_cell(cell, path, known)) for cell in cells]
    tables = [html for html in shown if html is not None]
    assert tables
    assert all("<td" in table for table in tables)


def html_of(value: Any) -> str | None:
    return value._repr_html_() if hasattr(value, "_repr_html_") else None


def run_cell(cell: str, path: Path, known: dict[str, Any]) -> Any:
    """As a notebook does: the value of an expression at its end is what it shows."""
    tree = ast.parse(cell)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, str(path), "exec"), known)  # noqa: S102 - our own file
        return None
    tree.body.pop()
    exec(compile(tree, str(path), "exec"), known)  # noqa: S102 - our own file
    return eval(compile(ast.Expression(last.value), str(path), "eval"), known)  # noqa: S307
