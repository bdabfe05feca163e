"""Share sessions, pure: what a request means for the session of a member on a node (R147-R162, R164).

How it works. A session is a value: the partitions that a member fetches from a node, in the order of fairness, and the
epoch that its next request has to carry. ``fetch`` and ``acknowledge`` take the session, or None, and give what has to
be done and the session afterwards, or a ``Fault``, which changes nothing. When a fetch is done, ``answered`` says which
partitions the answer lists.

    request epoch   0             1             2             -1
                    fetch ------> fetch ------> acknowledge -> fetch or acknowledge
    session         opens:        adds, forgets              closes: what the member holds of
                    epoch 1       epoch 2       epoch 3       its partitions is released

The caller keeps sessions by ``SessionKey``, and does this for each request:

1. ``fetch`` or ``acknowledge``; put the session that comes out in the place of the old one, or remove it.
2. Do the acknowledgements of ``step.acknowledge``, then acquire for ``step.fetch`` in that order (R161).
3. Commit, with the release of ``step.release`` if the session closes.
4. ``answered``; put the session again.

Requests of one session come one after another: both of Kafka's clients have one in flight, and a broker reads the next
one of a connection when it has answered. When a connection breaks, ``released_with`` gives what its session releases.
A session that takes the place of another of its member releases nothing (R59).

As in Kafka 4.2, all partitions that a fetch names belong to the session, also those that only carry acknowledgements;
a partition that is named and forgotten at once is acknowledged and leaves. Beside that, Kafka turns the order of
partitions by the session's epoch. Both together serve a partition twice in a row; here what has delivered goes to the
end, and nothing else moves.

Not a matter of sessions: topics that are unknown or not authorized (R164), each a failed partition of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from share_spark.coordinator.fault import Fault
from share_spark.model.errors import ErrorCode
from share_spark.model.ids import SharePartitionKey

OPEN_EPOCH = 0
"""The session epoch of a fetch that opens a session (R148)."""

CLOSE_EPOCH = -1
"""The session epoch of a request that closes it (R155)."""

_LAST_EPOCH = 2**31 - 1

_LONGEST_MEMBER_ID = 36

_MESSAGES = {
    ErrorCode.SHARE_SESSION_NOT_FOUND: "The share session was not found.",
    ErrorCode.INVALID_SHARE_SESSION_EPOCH: "The share session epoch is invalid.",
    ErrorCode.SHARE_SESSION_LIMIT_REACHED: "The limit of share sessions has been reached.",
}


class SessionKey(NamedTuple):
    """The key of a session (R147)."""

    group_id: str
    member_id: str
    node_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSession:
    """A session. ``epoch``: that of its next request.

    ``partitions``: in the order in which they are fetched; True: the next answer lists it, whatever it has (R153).
    """

    connection_id: str
    epoch: int
    partitions: Mapping[SharePartitionKey, bool]


class FetchLimits(NamedTuple):
    """The measures of a fetch, as the request gives them."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int


NO_FETCH = FetchLimits(0, 0, 0, 0)
"""The limits of a request that renews locks, which fetches nothing (KIP-1222)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFetch:
    """A ShareFetch. ``partitions``: all that it names, and ``acknowledged`` those of them with acknowledgements.

    ``renews``: some of these may renew locks, and nothing is fetched (version 2).
    """

    member_id: str
    session_epoch: int
    limits: FetchLimits
    partitions: tuple[SharePartitionKey, ...] = ()
    forgotten: tuple[SharePartitionKey, ...] = ()
    acknowledged: tuple[SharePartitionKey, ...] = ()
    renews: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAcknowledge:
    """A ShareAcknowledge: the partitions with acknowledgements."""

    member_id: str
    session_epoch: int
    acknowledged: tuple[SharePartitionKey, ...] = ()


class SessionStep(NamedTuple):
    """The meaning of a request. ``session``: as it is afterwards; None: it is closed.

    ``acknowledge``, then ``fetch``: partitions, in this order. ``release``: partitions of which the member gives back
    what it still holds, after its acknowledgements (R57).
    """

    session: ShareSession | None
    acknowledge: tuple[SharePartitionKey, ...] = ()
    fetch: tuple[SharePartitionKey, ...] = ()
    release: tuple[SharePartitionKey, ...] = ()


class FetchAnswer(NamedTuple):
    """The session after a fetch that is done, and the partitions that the answer lists, in this order."""

    session: ShareSession | None
    listed: tuple[SharePartitionKey, ...]


def fetch(
    session: ShareSession | None, request: ShareFetch, *, connection_id: str, has_room: bool
) -> SessionStep | Fault:
    """Return what a ShareFetch means. ``has_room``: one more session may be opened (R162).

    SHARE_SESSION_LIMIT_REACHED is to be answered after ``max_wait_ms``, as Kafka does, since clients repeat at once.
    """
    fault = _malformed(request)
    if fault is not None:
        return fault
    if request.session_epoch == OPEN_EPOCH:
        return _opened(session, request, connection_id, has_room)
    if request.session_epoch == CLOSE_EPOCH:
        return _closed(session, request.acknowledged)
    if session is None or session.epoch != request.session_epoch:
        return _refused(session)
    after = replace(session, epoch=_next(session.epoch), partitions=_updated(session.partitions, request))
    return SessionStep(after, request.acknowledged, () if request.renews else tuple(after.partitions))


def acknowledge(session: ShareSession | None, request: ShareAcknowledge) -> SessionStep | Fault:
    """Return what a ShareAcknowledge means; it counts in the same epochs as fetches, and cannot open (R149, R150)."""
    if not _is_member_id(request.member_id):
        return _invalid_member_id()
    if request.session_epoch == OPEN_EPOCH:
        return _fault(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    if request.session_epoch == CLOSE_EPOCH:
        return _closed(session, request.acknowledged)
    if session is None or session.epoch != request.session_epoch:
        return _refused(session)
    return SessionStep(replace(session, epoch=_next(session.epoch)), request.acknowledged)


def answered(
    session: ShareSession | None,
    step: SessionStep,
    delivered: Sequence[SharePartitionKey],
    failed: Sequence[SharePartitionKey],
) -> FetchAnswer | Fault:
    """Return which partitions the answer to a fetch lists (R153), and the session that follows.

    These are the partitions that have ``delivered`` records, that have ``failed``, that are new or had failed before,
    and those with acknowledgements. ``delivered``: in the order of ``step.fetch``. A partition that is not in the
    session, as it was forgotten with its acknowledgements, does not come into it by what is said of it here.

    ``session``: as it is now. If it is another one than that of ``step``, as requests have overtaken each other, the
    fault is the answer, and what was acquired has to be given back.
    """
    if step.session is None:
        return FetchAnswer(None, step.acknowledge)
    if session is None or (session.connection_id, session.epoch) != (step.session.connection_id, step.session.epoch):
        return _fault(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    there = session.partitions
    served, refused = ([key for key in keys if key in there] for keys in (delivered, failed))
    due = [key for key, is_due in there.items() if is_due] if step.fetch else []
    listed = tuple(dict.fromkeys((*served, *refused, *due, *step.acknowledge)))
    if not (served or refused or due):
        return FetchAnswer(session, listed)
    after = {**there, **dict.fromkeys(due, False), **dict.fromkeys(refused, True)}
    for key in served:  # to the end (R154)
        after[key] = after.pop(key)
    return FetchAnswer(replace(session, partitions=after), listed)


def released_with(session: ShareSession, connection_id: str) -> tuple[SharePartitionKey, ...] | None:
    """Return the partitions to release (R57) if ``session`` ends with the connection that broke; None: it stays.

    It stays if its member has opened it anew on another connection.
    """
    return tuple(session.partitions) if session.connection_id == connection_id else None


# ------------------------------------------------------------------------------------------------ checks


def _malformed(request: ShareFetch) -> Fault | None:
    """Check what is wrong whatever the session is. What opens a session cannot acknowledge (R149)."""
    if not _is_member_id(request.member_id):
        return _invalid_member_id()
    if request.renews and request.limits != NO_FETCH:
        return Fault(
            ErrorCode.INVALID_REQUEST, f"A request that renews locks fetches nothing, but has {request.limits}."
        )
    if request.session_epoch == OPEN_EPOCH and request.acknowledged:
        return Fault(ErrorCode.INVALID_REQUEST, "A request that opens a session has acknowledgements.")
    return None


def _is_member_id(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_MEMBER_ID


def _invalid_member_id() -> Fault:
    return Fault(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")


def _refused(session: ShareSession | None) -> Fault:
    """Refuse a request without a session, or with an epoch that is not the next (R151, R152)."""
    return _fault(ErrorCode.INVALID_SHARE_SESSION_EPOCH if session else ErrorCode.SHARE_SESSION_NOT_FOUND)


def _fault(code: ErrorCode) -> Fault:
    return Fault(code, _MESSAGES[code])


# ----------------------------------------------------------------------------------------------- changes


def _opened(
    session: ShareSession | None, request: ShareFetch, connection_id: str, has_room: bool
) -> SessionStep | Fault:
    """Open a session with exactly the named partitions; one of the same key makes room for it (R148)."""
    if session is None and not has_room:
        return _fault(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
    opened = ShareSession(
        connection_id=connection_id, epoch=_next(OPEN_EPOCH), partitions=dict.fromkeys(request.partitions, True)
    )
    return SessionStep(opened, (), () if request.renews else tuple(opened.partitions))


def _closed(session: ShareSession | None, acknowledged: tuple[SharePartitionKey, ...]) -> SessionStep | Fault:
    """Close a session, whatever its epoch is (R155)."""
    if session is None:
        return _refused(session)
    return SessionStep(None, acknowledged, release=tuple(session.partitions))


def _updated(known: Mapping[SharePartitionKey, bool], request: ShareFetch) -> Mapping[SharePartitionKey, bool]:
    """Add the named partitions at the end, then remove the forgotten ones (R153)."""
    new = dict.fromkeys((key for key in request.partitions if key not in known), True)
    if not new and not request.forgotten:
        return known
    forgotten = set(request.forgotten)
    return {key: due for key, due in (*known.items(), *new.items()) if key not in forgotten}


def _next(epoch: int) -> int:
    """Return the epoch of the request after this one; 0 is left out (R150)."""
    return 1 if epoch == _LAST_EPOCH else epoch + 1
