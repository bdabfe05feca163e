"""`share-spark configs`: dynamic configs of groups, in the form and the words of Kafka's `kafka-configs.sh` for
entities of type `groups`. A running engine applies them at its next micro-batch. No JVM."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from share_spark.cli.arguments import parsed
from share_spark.cli.command import NOT_DONE
from share_spark.model.dynamic_config import configs_text
from share_spark.model.errors import ConfigError

if TYPE_CHECKING:
    from share_spark.admin.share_group_admin import ShareGroupAdmin
    from share_spark.model.dynamic_config import ConfigEntry


def run_configs(arguments: Sequence[str]) -> int:
    """Run `share-spark configs`. Raises ConfigError, StateError."""
    from share_spark.admin.share_group_admin import ShareGroupAdmin

    given = parsed(arguments)
    check(given)
    admin = ShareGroupAdmin(given.location)
    print((described if given.describe else altered)(admin, given), flush=True)
    return 0


def check(given: Namespace) -> None:
    """Check that the options go together. Raises ConfigError, in Kafka's words where it has some."""
    if given.describe and (given.add_config or given.delete_config or given.execute or given.dry_run):
        raise ConfigError(
            "Option [describe] does not take the options [add-config], [delete-config], [dry-run], [execute]"
        )
    if given.alter and (given.all or given.json):
        raise ConfigError("Option [alter] does not take the options [all], [json]")
    if given.alter and len(given.group) != 1:
        raise ConfigError("Exactly one entity name must be specified for every entity type")
    if given.alter and not (given.add_config or given.delete_config):
        raise ConfigError("At least one of --add-config or --delete-config must be specified with --alter")


def described(admin: ShareGroupAdmin, given: Namespace) -> str:
    """Return the dynamic settings of the named groups, or of all; with ``--all`` all settings."""
    found = {
        group: [one for one in admin.describe_configs(group) if given.all or _is_dynamic(one)]
        for group in given.group or [one.group_id for one in admin.list_groups()]
    }
    if given.json:
        return json.dumps({group: [asdict(one) for one in shown] for group, shown in found.items()}, indent=1)
    kind = "All" if given.all else "Dynamic"
    blocks = [[f"{kind} configs for group {group} are:", *map(_line, shown)] for group, shown in found.items()]
    return "\n".join(line for block in blocks for line in block)


def _is_dynamic(entry: ConfigEntry) -> bool:
    return entry.source == "DYNAMIC_GROUP_CONFIG"


def _line(entry: ConfigEntry) -> str:
    synonyms = ", ".join(f"{one.source}:{entry.name}={one.value}" for one in entry.synonyms)
    return f"  {entry.name}={entry.value} sensitive=false synonyms={{{synonyms}}}"


def altered(admin: ShareGroupAdmin, given: Namespace) -> str:
    """Return what was done, or would be."""
    (group,) = given.group
    added, deleted = _added(given.add_config), _deleted(given.delete_config)
    if given.execute:
        admin.alter_configs(group, added, deleted)
        return f"Completed updating config for group {group}."
    planned = admin.plan_configs(group, added, deleted)
    return f"Dynamic configs for group {group} would be: {configs_text(planned)}" + NOT_DONE


_BETWEEN = re.compile(r",(?=[^\]]*(?:\[|$))")
"""A pattern for a comma that is not inside brackets."""

_PAIR = re.compile(r"\s*([\w.-]+)\s*=\s*(?:\[\s*(.*?)\s*\]|(.*?))\s*")


def _added(texts: Sequence[str]) -> dict[str, str]:
    """Return the pairs of all ``k=v,k=[v,v]``. Raises ConfigError."""
    pairs = [_PAIR.fullmatch(pair) for text in texts for pair in _BETWEEN.split(text)]
    found = {pair[1]: pair[2] if pair[2] is not None else pair[3] for pair in pairs if pair}
    if None in pairs or "" in found.values():
        raise ConfigError(
            'Invalid entity config: all configs to be added must be in the format "key=val" or "key=[val1,val2]" to '
            "group values which contain commas."
        )
    return found


def _deleted(texts: Sequence[str]) -> list[str]:
    return [key.strip() for text in texts for key in text.split(",")]
