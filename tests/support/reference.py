"""``docs/reference.md``: each setting and each command, generated from the code. ``python -m tests.support.reference``
writes it; a test compares."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from share_spark.cli.arguments import command_parser
from share_spark.model.config import SETTINGS, OffsetReset

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference.md"
_CONFIG = ROOT / "conf" / "share-spark.toml"
_SETTING = re.compile(r"^(?:# )?([a-z][a-z.]+) = ")

_HEAD = """# Reference

Generated from the code by `python -m tests.support.reference`; a test compares the two.

## Settings of a group

The same keys work in `conf/share-spark.toml`, in `ShareGroup(...).option(key, value)` and as `--option KEY=VALUE`.
Durations are milliseconds, or text such as `30s`, `10m`, `7d`, `PT1H`. Kafka's broker-side names (`group.share.*`) are
accepted, too.

`share-spark configs` changes dynamic settings while the group runs.

| setting | dynamic | default | meaning |
|---|---|---|---|
"""


def reference() -> str:
    """The whole document."""
    return _HEAD + "\n".join(_settings()) + "\n\n## Commands\n\n" + "\n".join(_commands()).rstrip() + "\n"


def _settings() -> Iterator[str]:
    texts = dict(_commented(_CONFIG.read_text(encoding="utf-8")))
    for setting in SETTINGS.values():
        default = setting.default if not isinstance(setting.default, OffsetReset) else str(setting.default)
        yield f"| `{setting.key}` | {'no' if setting.fixed else 'yes'} | `{default}` | {texts[setting.key]} |"


def _commented(text: str) -> Iterator[tuple[str, str]]:
    """Yield (key, the comment above it) for each setting that has one."""
    comment: list[str] = []
    for line in text.splitlines():
        if found := _SETTING.match(line):
            if comment:
                yield found[1], " ".join(comment)
            comment = []
        else:
            comment = [*comment, line.removeprefix("# ")] if line.startswith("# ") else []


def _commands() -> Iterator[str]:
    for name, parser, text in _parsers(command_parser()):
        yield f"### `{name}`\n\n{text}\n\n| option | |\n|---|---|"
        for action in parser._actions:
            if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
                yield f"| `{_option(action)}` | {_escaped(action.help or '')} |"
        yield ""


def _parsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """(full name, parser, what it is for) of each command, those below others included."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, below in action.choices.items():
                found = list(_parsers(below))
                if not found:
                    yield f"{parser.prog} {name}", below, f"{helps[name][:1].upper()}{helps[name][1:]}."
                yield from found


def _option(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    return f"{', '.join(action.option_strings)}{value}" if action.option_strings else str(action.metavar or action.dest)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("%%", "%")


if __name__ == "__main__":
    REFERENCE.write_text(reference(), encoding="utf-8")
    sys.stdout.write(f"{REFERENCE.relative_to(ROOT)}\n")
