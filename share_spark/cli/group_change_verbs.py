"""`share-spark groups --reset-offsets | --delete-offsets | --delete | --pause | --resume`. A change is shown first, and
made with `--execute` only. A JVM is started for what only Spark can do."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from share_spark.cli.command import NOT_DONE, table
from share_spark.cli.group_options import STARTS, is_said, named
from share_spark.cli.written_values import later_ms, past_moment, topic_partitions, topics_named
from share_spark.model.errors import ConfigError
from share_spark.model.moments import milliseconds

if TYPE_CHECKING:
    from share_spark.admin.group_changes import NewOffset, StartAt
    from share_spark.admin.share_group_admin import ShareGroupAdmin


def check_change(given: Namespace, verb: str) -> None:
    """Check that no option is missing. Raises ConfigError, in Kafka's words where it has some."""
    if verb == "delete":
        return
    if len(given.group) != 1:
        raise ConfigError(f"Option [{verb}] takes the option: [group], once")
    if verb == "delete-offsets":
        _check_whole_topics(given.topic)
    if verb == "reset-offsets":
        if not (given.topic or given.all_topics):
            raise ConfigError("Option [reset-offsets] takes one of these options: [all-topics], [topic]")
        if not any(is_said(given, name) for name in STARTS):
            raise ConfigError(f"Option [reset-offsets] takes one of these options: {named(STARTS)}")


def _check_whole_topics(texts: Sequence[str]) -> None:
    if not texts:
        raise ConfigError("Option [delete-offsets] takes the following options: [topic], [group]")
    for text in texts:
        name, partitions = topic_partitions(text)
        if partitions:
            raise ConfigError(f"Option [delete-offsets] takes whole topics, not partitions: --topic {name}")


def changed(admin: ShareGroupAdmin, given: Namespace) -> str:
    """Return what was done, or would be."""
    if given.pause or given.resume:
        return _paused(admin, given)
    if given.reset_offsets:
        return _reset(admin, given)
    return _offsets_deleted(admin, given) if given.delete_offsets else _deleted(admin, given)


def _reset(admin: ShareGroupAdmin, given: Namespace) -> str:
    start, number = _start(given)
    topics = None if given.all_topics else topics_named(given.topic)
    plan = admin.plan_reset(given.group[0], start, number, topics)
    if given.execute:
        admin.reset_offsets(plan)
    rows = [(found.key.group_id, found.topic, found.key.partition, found.offset) for found in plan]
    text = table(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows)
    return text + _outside(plan, given.to_offset) + _not_done(given)


def _outside(plan: Sequence[NewOffset], wanted: int | None) -> str:
    """Return a warning for each partition where ``wanted`` is not within the log."""
    moved = [found for found in plan if wanted is not None and found.offset != wanted]
    lines = (
        f"WARN: {wanted} is {'beyond the end' if found.offset < (wanted or 0) else 'before the start'} of the log of "
        f"{found.topic}:{found.key.partition}: {found.offset} is taken."
        for found in moved
    )
    return "\n" * bool(moved) + "".join(f"\n{line}" for line in lines)


def _paused(admin: ShareGroupAdmin, given: Namespace) -> str:
    (group,) = given.group
    topics = topics_named(given.topic) or None
    if given.pause:
        until_ms = None if given.until is None else later_ms(given.until)
        pauses = admin.plan_pause(group, topics, until_ms)
    else:
        pauses = admin.plan_resume(group, topics)
    if given.execute:
        admin.set_pauses(group, pauses)
    words = ("Paused", "Would be paused") if given.pause else ("Still paused", "Would still be paused")
    is_done = words[0] if given.execute else words[1]
    return f"{is_done} of share group '{group}': {pauses}." + _not_done(given)


def _offsets_deleted(admin: ShareGroupAdmin, given: Namespace) -> str:
    topics = list(topics_named(given.topic))
    admin.require_topics(given.group[0], topics)
    if given.execute:
        admin.delete_offsets(given.group[0], topics)
    status = "Successful" if given.execute else "Would be deleted"
    return table(("TOPIC", "STATUS"), [(topic, status) for topic in topics]) + _not_done(given)


def _deleted(admin: ShareGroupAdmin, given: Namespace) -> str:
    groups = [one.group_id for one in admin.list_groups()] if given.all_groups else given.group
    for group in groups:
        admin.require_topics(group, ())
    names = ", ".join(f"'{group}'" for group in groups)
    if not given.execute:
        return f"Share groups ({names}) would be deleted." + _not_done(given)
    for group in groups:
        admin.delete_group(group)
    return f"Deletion of requested share groups ({names}) was successful."


def _not_done(given: Namespace) -> str:
    return "" if given.execute else NOT_DONE


def _start(given: Namespace) -> tuple[StartAt, int]:
    from share_spark.admin.group_changes import StartAt

    if given.to_datetime is not None:
        return StartAt.TIME, milliseconds(past_moment(given.to_datetime))
    if given.to_offset is not None:
        return StartAt.OFFSET, given.to_offset
    if given.shift_by is not None:
        return StartAt.SHIFT, given.shift_by
    return (StartAt.EARLIEST if given.to_earliest else StartAt.LATEST), 0
