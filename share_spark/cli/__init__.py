"""The command line: parse, call, print. `share-spark run` and `spark-submit jobs/run_share_group.py` are the same code,
as are `share-spark compact` and `jobs/compact_share_state.py`.

Everything that can be checked without Spark is checked before a JVM is started (``job``). Bad input is one line on
stderr and exit code 2 (1 for operators' commands), a fault of the run one line and exit code 1 (``command``). Values of
Kafka options are never printed, nor is any text that could hold one.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from share_spark.cli.command import BAD_INPUT, FAILED, guarded
from share_spark.spark.installed import needing_spark
from share_spark.spark.progress_log import PROGRESS_LOGGER

__all__ = ["BAD_INPUT", "FAILED", "guarded", "main"]

_COMMANDS: Mapping[str, str] = {
    "compact": "stored.run_compact",
    "configs": "configs.run_configs",
    "dead-letters": "dead_letter_commands.run_dead_letters",
    "doctor": "stored.run_doctor",
    "exporter": "exporter.serve_metrics",
    "gateway": "gateway.serve_clients",
    "gateway-user": "gateway_users.set_user",
    "groups": "groups.run_groups",
    "history": "stored.run_history",
    "prepare": "stored.run_prepare",
    "report": "pages.write_report",
    "top": "top.run_top",
    "ui": "pages.serve_ui",
    "verify": "stored.run_verify",
}
"""The function of each command; its module is imported when it is called: all of them take most of a second."""

_RUN = "running.run_given"
"""The function for ``run``, and for a call without a command."""


_FOR_OPERATORS = {"configs", "dead-letters", "exporter", "groups", "history", "report", "top", "ui"}
"""The commands with exit code 1 for bad input too, as Kafka's own tools have it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script. Returns the exit code; prints errors."""
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = bool({"--debug", "-v"} & set(given))
    logging.basicConfig(
        format="%(asctime)s share-spark: %(message)s" if debug else "share-spark: %(message)s",
        level=logging.INFO if debug else logging.WARNING,
    )
    # py4j logs each error of the JVM with its stack trace; ``guarded`` reports it in one line.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger(PROGRESS_LOGGER).setLevel(logging.INFO)
    bad_input = FAILED if given and given[0] in _FOR_OPERATORS else BAD_INPUT
    return guarded(lambda: _command(given), debug=debug, bad_input=bad_input)


def _complete() -> None:
    """Answer a shell that asks for completions (``register-python-argcomplete share-spark``). Ends the process."""
    import argcomplete

    from share_spark.cli.arguments import command_parser

    argcomplete.autocomplete(command_parser(), always_complete_options="long")


def _command(given: Sequence[str]) -> int:
    name = given[0] if given and given[0] in _COMMANDS else "run"
    module, _, function = _COMMANDS.get(name, _RUN).partition(".")
    with needing_spark(f"share-spark {name}"):
        command: Callable[[Sequence[str]], int] = getattr(importlib.import_module(f"{__name__}.{module}"), function)
        return command(given)
