"""The options that each verb of `share-spark groups` takes."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable

from share_spark.model.errors import ConfigError

STARTS = ("to-earliest", "to-latest", "to-datetime", "to-offset", "shift-by")
"""The options for a group's new start."""

_CHANGES = ("dry-run", "execute")
_TOPICS = ("topic", "all-topics")
_TAKES = {
    "list": ("state", "json"),
    "describe": ("group", "all-groups", "offsets", "members", "state", "verbose", "json"),
    "reset-offsets": ("group", *_TOPICS, *STARTS, *_CHANGES),
    "delete-offsets": ("group", "topic", *_CHANGES),
    "delete": ("group", "all-groups", *_CHANGES),
    "pause": ("group", *_TOPICS, "until", *_CHANGES),
    "resume": ("group", *_TOPICS, *_CHANGES),
}
"""The options by verb, besides those for the place of the state and the topics."""

_OPTIONS = sorted({name for names in _TAKES.values() for name in names})


def is_said(given: Namespace, name: str) -> bool:
    """Return whether an option was given, also if its value is 0 or empty."""
    value = getattr(given, name.replace("-", "_"))
    return value is not None and value is not False and value != []


def named(names: Iterable[str]) -> str:
    """Return the names in the form of Kafka's tools."""
    return ", ".join(f"[{name}]" for name in names)


def verb_of(given: Namespace) -> str:
    """Return the verb; there is exactly one."""
    return next(verb for verb in _TAKES if is_said(given, verb))


def check_options(given: Namespace, verb: str) -> None:
    """Check that the options go together. Raises ConfigError, in Kafka's words where it has some."""
    if wrong := [name for name in _OPTIONS if is_said(given, name) and name not in _TAKES[verb]]:
        raise ConfigError(f"Option [{verb}] does not take the option{'s' * (len(wrong) > 1)} {named(wrong)}")
    for every, one in (("all-groups", "group"), ("all-topics", "topic")):
        if is_said(given, every) and is_said(given, one):
            raise ConfigError(f"Option [{every}] does not take the option [{one}]")
    if "all-groups" in _TAKES[verb] and not (given.group or given.all_groups):
        raise ConfigError(f"Option [{verb}] takes one of these options: [all-groups], [group]")
