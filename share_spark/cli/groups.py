"""`share-spark groups`: the verbs, columns and messages of Kafka's `kafka-share-groups.sh`, for the groups in a state
directory. To look starts no JVM."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from share_spark.cli.arguments import parsed
from share_spark.cli.group_changes import changed, check_change
from share_spark.cli.group_options import check_options, verb_of
from share_spark.cli.group_tables import Row, table
from share_spark.cli.topic_places import topic_place
from share_spark.model.dynamic_config import configs_text
from share_spark.model.errors import ConfigError
from share_spark.web.drawings import span

if TYPE_CHECKING:
    from share_spark.admin.group_details import GroupMember, PartitionOffsets
    from share_spark.admin.share_group_admin import GroupsLook, ShareGroupAdmin

UNKNOWN = "-"
"""What Kafka's tool prints for a value that is not known."""


def run_groups(arguments: Sequence[str]) -> int:
    """Raises ConfigError, StateError, TopicError."""
    given = parsed(arguments)
    check(given)
    admin = admin_of(given)
    if given.list or given.describe:
        print((listed if given.list else described)(admin.look(), given), flush=True)
    else:
        print(changed(admin, given), flush=True)
    return 0


def admin_of(given: Namespace) -> ShareGroupAdmin:
    """Of the place that was said. Raises ConfigError; reads nothing yet."""
    from share_spark.admin.share_group_admin import ShareGroupAdmin

    return ShareGroupAdmin(given.location, *topic_place(given), request_timeout_ms=given.timeout)


def check(given: Namespace) -> None:
    """Raises ConfigError for options that do not go together, with Kafka's words where it has some."""
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
    """``--list``: group ids, with ``--state`` in two columns."""
    wanted = _states(given)
    found = [one for one in look.list_groups() if not wanted or one.phase.value in wanted]
    if given.json:
        return _json([{"group_id": one.group_id, "state": one.phase.value} for one in found])
    if given.state is None:
        return "\n".join(one.group_id for one in found)
    return table(("GROUP", "STATE"), [(one.group_id, one.phase.value) for one in found])


def described(look: GroupsLook, given: Namespace) -> str:
    """``--describe``, of each group one after the other."""
    groups = [one.group_id for one in look.list_groups()] if given.all_groups else given.group
    show = _members if given.members else _state if given.state is not None else _offsets
    if given.json:
        return _json([record for group in groups for record in show(look, group, given)[1]])
    return "\n\n".join(show(look, group, given)[0] for group in groups)


Ages = Mapping[tuple[str, int], int]
"""By topic and partition: for how long the oldest unfinished record has been there, in milliseconds."""

Shown = tuple[str, Sequence[Mapping[str, Any]]]
"""As a table, and as records."""


def _offsets(look: GroupsLook, group: str, given: Namespace) -> Shown:
    rows = look.describe_offsets(group)
    columns: dict[str, Callable[[PartitionOffsets], object]] = {
        "GROUP": lambda row: row.group_id,
        "TOPIC": lambda row: row.topic,
        "PARTITION": lambda row: row.partition,
        **({"LEADER-EPOCH": lambda row: row.leader_epoch} if given.verbose else {}),
        "START-OFFSET": lambda row: UNKNOWN if row.start_offset < 0 else row.start_offset,
        "LAG": lambda row: UNKNOWN if row.lag is None else row.lag,
    }
    ages = look.lag_ms(rows) if given.verbose else {}
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
    names = [field.name for field in fields(rows[0])] if rows else []
    records = [{name: getattr(row, name) for name in names} | _lag_ms(row, ages) for row in rows]
    return _note_if_empty(look, group) + text, records


def _age(row: PartitionOffsets, ages: Ages) -> str:
    age_ms = 0 if row.lag == 0 else ages.get((row.topic, row.partition))
    return UNKNOWN if age_ms is None else span(age_ms)


def _lag_ms(row: PartitionOffsets, ages: Ages) -> dict[str, int]:
    """Where it is known."""
    place = row.topic, row.partition
    return {"lag_ms": ages[place]} if place in ages else {}


def _members(look: GroupsLook, group: str, given: Namespace) -> Shown:
    found = look.describe_members(group)
    names = ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    names += ["MEMBER-EPOCH"] * given.verbose + ["ASSIGNMENT"]
    rows = [_member_row(member, verbose=given.verbose) for member in found]
    records = [{**asdict(one), "acquired": {f"{t}:{p}": n for (t, p), n in one.acquired.items()}} for one in found]
    return _note_if_empty(look, group) + (table(names, rows) if rows else ""), records


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
    record = {"group_id": group, "coordinator": host, "state": found.phase.value, "members": len(members)}
    row = dict(zip(("GROUP", "COORDINATOR (ID)", "STATE", "#MEMBERS"), record.values(), strict=True))
    if settings.pauses:
        row["PAUSED"] = str(settings.pauses)
    if settings.dynamic_configs:
        row["DYNAMIC-CONFIGS"] = configs_text(settings.dynamic_configs)
    paused = [one._asdict() for one in settings.pauses.entries]
    return table(tuple(row), [tuple(row.values())]), [
        {**record, "paused": paused, "dynamic_configs": settings.dynamic_configs}
    ]


def _note_if_empty(look: GroupsLook, group: str) -> str:
    """As Kafka's tool says it."""
    empty = look.describe_group(group).phase.value == "Empty"
    return f"Share group '{group}' has no active members.\n\n" if empty else ""


def _json(found: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(list(found), indent=1)
