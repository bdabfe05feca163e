"""Topics that were deleted while a group reads them: the group goes on with the others.

A topic that is not there may be one that a broker does not know yet, so its state stays. One that was made anew has
another id: what is stored for the former can never be read again, and goes (R130).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from share_spark.admin.group_changes import forget
from share_spark.delta.location import Location
from share_spark.engine.ports import TopicLog
from share_spark.engine.topics import SubscribedTopics
from share_spark.gateway.stored_groups import StoredGroups
from share_spark.model.errors import TopicError, TopicUnreachableError

_log = logging.getLogger(__name__)


def subscribe_existing(topics: SubscribedTopics, names: Iterable[str]) -> list[str]:
    """Subscribe to those of these topics that are there, and return the others. Raises TopicUnreachableError."""
    missing = []
    for name in names:
        try:
            topics.subscribe([name])
        except TopicUnreachableError:
            raise
        except TopicError:
            missing.append(name)
    return missing


def forget_former_topics(state: Location, group_id: str, log: TopicLog) -> None:
    """Delete the state of topics whose names now belong to others, in a group that no engine runs. Raises
    TopicUnreachableError, StateError, FencedError."""
    group = StoredGroups(str(state)).find(group_id)
    if group is None:
        return
    topics = {key: topic for key, (topic, _) in group.partitions.items()}
    present = _ids(log, set(topics.values()))
    former = {key: topic for key, topic in topics.items() if present.get(topic, key.topic_id) != key.topic_id}
    if former:
        names = ", ".join(sorted(set(former.values())))
        _log.warning("group %s begins anew with topics that were deleted and created again: %s", group_id, names)
        forget(None, str(state), group_id, former)


def _ids(log: TopicLog, names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = log.describe(name).topic_id
        except TopicUnreachableError:
            raise
        except TopicError:
            continue
    return found
