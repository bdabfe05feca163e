"""Read golden files. Whatever is wrong with one is reported in one line (``GoldenFileError``)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Golden = dict[str, Any]


class GoldenFileError(Exception):
    """A file that is missing, unreadable, or not of the format; the message is one line."""


SCENARIO_KEYS = ("name", "config", "initial", "ops", "features", "differs_from_seed")
VECTOR_KEYS = ("name", "start_offset", "existing", "new", "expected")


CONFIG_KEYS = ("start_offset", "max_in_flight", "max_delivery_count", "lock_ms")
STEP_KEYS = ("op", "result", "state")


def read_scenarios(path: Path) -> list[Golden]:
    scenarios = _read(path, SCENARIO_KEYS)
    for scenario in scenarios:
        where = f"{path}: scenario {scenario['name']}"
        _check(f"{where}: config", scenario["config"], CONFIG_KEYS)
        _check(f"{where}: initial", scenario["initial"], ("error", "state"))
        if not isinstance(scenario["ops"], list):
            raise GoldenFileError(f"{where}: ops is not a list")
        for number, step in enumerate(scenario["ops"]):
            _check(f"{where}: step {number}", step, STEP_KEYS)
            _check(f"{where}: step {number}: op", step["op"], ("op",))
    return scenarios


def read_vectors(path: Path) -> list[Golden]:
    vectors = _read(path, VECTOR_KEYS)
    for vector in vectors:
        for key in ("existing", "new", "expected"):
            if not all(isinstance(b, list) and len(b) == 4 for b in vector[key]):
                raise GoldenFileError(f"{path}: vector {vector['name']}: {key}: not [f, l, s, c]")
    return vectors


def _read(path: Path, keys: tuple[str, ...]) -> list[Golden]:
    """The objects of a .jsonl or .jsonl.gz file, one a line; blank lines are passed over."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise GoldenFileError(f"{path}: cannot be read: {error}") from error
    golden = [_parse(path, number, line, keys) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not golden:
        raise GoldenFileError(f"{path}: holds nothing")
    return golden


def _parse(path: Path, number: int, line: str, keys: tuple[str, ...]) -> Golden:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise GoldenFileError(f"{path}:{number}: not JSON: {error}") from error
    return _check(f"{path}:{number}", value, keys)


def _check(where: str, value: Any, keys: tuple[str, ...]) -> Golden:
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    if missing:
        raise GoldenFileError(f"{where}: not of this format, no {', '.join(missing)}")
    return dict(value)
