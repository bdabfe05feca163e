"""`share-spark groups`: the verbs, columns and messages of Kafka's `kafka-share-groups.sh`, for the groups in a state
directory. Reading starts no JVM; a change does only where there is no other way."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from share_spark.cli.arguments import parsed, topic_place
from share_spark.cli.command import FAILED, Row, spark_when_needed, table
from share_spark.cli.group_change_verbs import changed, check_change
from share_spark.cli.group_options import check_options, verb_of
from share_spark.model.dynamic_config import configs_text
from share_spark.model.errors import ConfigError
from share_spark.web.drawings import span, utc

if TYPE_CHECKING:
    from share_spark.admin.group_details import GroupMember, PartitionOffsets
    from share_spark.admin.share_group_admin import GroupsLook, ShareGroupAdmin

UNKNOWN = "-"
"""The text of Kafka's tool for an unknown value."""


def run_groups(arguments: Sequence[str]) -> int:
    """Run `share-spark groups`. If the topics of a group cannot be asked, its rows are printed with a warning, and the
    exit code is 1. Raises ConfigError, StateError, TopicError."""
    given = parsed(arguments)
    check(given)
    admin = admin_of(given)
    if given.describe:
        return _say_described(described(admin.look(), given))
    if given.list:
        print(listed(admin.look(), given), flush=True)
        return 0
    with spark_when_needed("share-spark groups") as spark:
        print(changed(replace(admin, spark=spark), given), flush=True)
    return 0


def _say_described(found: Described) -> int:
    print(found.text, flush=True)
    warn_of_unknown_lag(found.faults)
    return FAILED if found.faults else 0


def warn_of_unknown_lag(faults: Iterable[str]) -> None:
    """Print a line for each of ``faults``."""
    for fault in faults:
        print(f"share-spark: the lag is not known: {fault}", file=sys.stderr, flush=True)


def admin_of(given: Namespace) -> ShareGroupAdmin:
    """Return the admin of the given place. Raises ConfigError; reads nothing yet."""
    from share_spark.admin.share_group_admin import ShareGroupAdmin

    return ShareGroupAdmin(given.location, *topic_place(given), request_timeout_ms=given.timeout)


def check(given: Namespace) -> None:
    """Check that the options go together. Raises ConfigError, in Kafka's words where it has some."""
    verb = verb_of(given)
    check_options(given, verb)
    if verb not in ("list", "describe"):
        check_change(given, verb)
        return
    if sum((given.offsets, given.members, given.describe and given.state is not None)) > 1:
        raise ConfigError("Option [describe] takes at most one of these options: [members], [offsets], [state]")
    wanted = _states(given) if given.list else ()
    for state in wanted:
        if state not in ("Stable", "Empty", "Dead"):
            raise ConfigError(f"Invalid state list '{given.state}'. Valid states are: Dead, Empty, Stable")


def _states(given: Namespace) -> list[str]:
    return [text.strip().capitalize() for text in (given.state or "").split(",") if text.strip()]


def listed(look: GroupsLook, given: Namespace) -> str:
    """Return the text of ``--list``: group ids, with ``--state`` in two columns."""
    wanted = _states(given)
    found = [one for one in look.list_groups() if not wanted or one.phase.value in wanted]
    if given.json:
        return _json([{"group_id": one.group_id, "state": one.phase.value} for one in found])
    if given.state is None:
        return "\n".join(one.group_id for one in found)
    return table(("GROUP", "STATE"), [(one.group_id, one.phase.value) for one in found])


class Shown(NamedTuple):
    """A group as a table, and as records. ``fault``: why the data of the topics is missing, empty if it is there."""

    text: str
    records: Sequence[Mapping[str, Any]]
    fault: str = ""


class Described(NamedTuple):
    """The text for all groups. ``faults``: each once."""

    text: str
    faults: Sequence[str]


def described(look: GroupsLook, given: Namespace) -> Described:
    """Return the text of ``--describe``, one group after the other."""
    groups = [one.group_id for one in look.list_groups()] if given.all_groups else given.group
    show = _members if given.members else _state if given.state is not None else _offsets
    found = [show(look, group, given) for group in groups]
    if given.json:
        text = _json([record for one in found for record in one.records])
    else:
        text = "\n\n".join(one.text for one in found)
    return Described(text, list(dict.fromkeys(one.fault for one in found if one.fault)))


Ages = Mapping[tuple[str, int], int]
"""The time that the oldest unfinished record has been there, in milliseconds, by topic and partition."""


def _offsets(look: GroupsLook, group: str, given: Namespace) -> Shown:
    rows, fault = look.known_offsets(group)
    if not rows:
        return Shown(f"Share group '{group}' has no offset information.", [], fault)
    ages: Ages = {}
    if given.verbose and not fault:
        ages, fault = look.known_lag_ms(rows)
    columns: dict[str, Callable[[PartitionOffsets], object]] = {
        "GROUP": lambda row: row.group_id,
        "TOPIC": lambda row: row.topic,
        "PARTITION": lambda row: row.partition,
        **({"LEADER-EPOCH": lambda row: row.leader_epoch} if given.verbose else {}),
        "START-OFFSET": lambda row: UNKNOWN if row.start_offset < 0 else row.start_offset,
        "LAG": lambda row: UNKNOWN if row.lag is None else row.lag,
    }
    if given.verbose:
        columns |= {
            "LAG-TIME": lambda row: _age(row, ages),
            "END-OFFSET": lambda row: row.end_offset,
            "AVAILABLE": lambda row: row.available,
            "ACQUIRED": lambda row: row.acquired,
            "MAX-DELIVERY-COUNT": lambda row: row.max_delivery_count,
        }
    text = table(tuple(columns), [[cell(row) for cell in columns.values()] for row in rows])
    # Not ``asdict``, which copies each value: a group may have ten thousand share-partitions.
    names = [field.name for field in fields(rows[0])]
    records = [{name: getattr(row, name) for name in names} | _lag_ms(row, ages) for row in rows]
    return Shown(_note_if_empty(look, group) + text, records, fault)


def _age(row: PartitionOffsets, ages: Ages) -> str:
    age_ms = 0 if row.lag == 0 else ages.get((row.topic, row.partition))
    return UNKNOWN if age_ms is None else span(age_ms)


def _lag_ms(row: PartitionOffsets, ages: Ages) -> dict[str, int]:
    place = row.topic, row.partition
    return {"lag_ms": ages[place]} if place in ages else {}


def _members(look: GroupsLook, group: str, given: Namespace) -> Shown:
    found = look.describe_members(group)
    names = ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    names += ["MEMBER-EPOCH"] * given.verbose + ["ASSIGNMENT"]
    rows = [_member_row(member, verbose=given.verbose) for member in found]
    records = [{**asdict(one), "acquired": {f"{t}:{p}": n for (t, p), n in one.acquired.items()}} for one in found]
    return Shown(_note_if_empty(look, group) + (table(names, rows) if rows else ""), records)


def _member_row(member: GroupMember, *, verbose: bool) -> Row:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(member.acquired):
        by_topic.setdefault(topic, []).append(partition)
    assigned = ";".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in by_topic.items())
    row: list[object] = [member.group_id, member.member_id, member.host or UNKNOWN, f"pid {member.pid}"]
    return [*row, len(member.acquired), *([member.writer_epoch] if verbose else []), assigned or UNKNOWN]


def _state(look: GroupsLook, group: str, _given: Namespace) -> Shown:
    found, members, settings = look.describe_group(group), look.describe_members(group), look.operator_settings(group)
    host = members[0].host if members else UNKNOWN
    record: dict[str, Any] = {
        "group_id": group,
        "coordinator": host,
        "state": found.phase.value,
        "members": len(members),
    }
    row = dict(zip(("GROUP", "COORDINATOR (ID)", "STATE", "#MEMBERS"), record.values(), strict=True))
    end = found.engine.end if found.engine is not None else None
    if end is not None:
        row["LAST-END"] = f"{end.kind}, {utc(end.at_ms)}"
    if end is not None and end.error:
        row["LAST-ERROR"] = end.error
    calls = members[0].calls if members else ""
    if calls:
        row["CALLS"] = calls
    if settings.pauses:
        row["PAUSED"] = str(settings.pauses)
    if settings.dynamic_configs:
        row["DYNAMIC-CONFIGS"] = configs_text(settings.dynamic_configs)
    record |= {
        "last_end": None if end is None else end._asdict(),
        "calls": calls or None,
        "paused": [one._asdict() for one in settings.pauses.entries],
        "dynamic_configs": settings.dynamic_configs,
    }
    return Shown(table(tuple(row), [tuple(row.values())]), [record])


def _note_if_empty(look: GroupsLook, group: str) -> str:
    """Return the line of Kafka's tool for an empty group."""
    empty = look.describe_group(group).phase.value == "Empty"
    return f"Share group '{group}' has no active members.\n\n" if empty else ""


def _json(found: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(list(found), indent=1)
