"""The answers of a handler for a record, and their conversion from many forms into arrays of numbers.

A handler may answer with ``Ack`` members, their numbers, their names, a NumPy array, an Arrow array, a pandas Series, a
table with a column ``ack`` (``batch_answers``). All of them become ``Answers``: one code per record and, for those that
were not accepted, the number of an error text, and the delay of a release. Beside them, ``Ack.throttled()`` is no
acknowledgement: a service has asked the handler to wait.

Pure: no Spark, no handler is called here.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from types import CoroutineType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from share_spark.handlers.error_texts import NO_FAULTS, error_text, exception_text, reason_text, shown
from share_spark.model.config import MOST_DELAY_MS, parse_duration_ms
from share_spark.model.errors import ConfigError, HandlerError
from share_spark.model.requests import Loss

Codes = npt.NDArray[np.int8]
ErrorIds = npt.NDArray[np.int32]

DelaysMs = npt.NDArray[np.int64]
Costs = npt.NDArray[np.float64]
Reason = str | BaseException | None
"""The reason for an answer; it is kept as text (``reason_text``)."""

NO_DELAY = -1
"""The value for a record whose handler asked for no delay."""

NO_COST = float("nan")
"""The value for a record of which nobody says what it has cost."""

DEFAULT_THROTTLE_MS = 1_000
"""The time to wait if a service does not say how long."""


class Ack(IntEnum):
    """The result of a handler for a record. The numbers are the protocol's (``AcknowledgeType``).

    ``ACCEPT``: done. ``RELEASE``: try again later, up to the delivery limit. ``REJECT``: it can never succeed; it goes
    to the dead letters if there are any. ``Ack.release("why")`` and ``Ack.reject("why")`` keep a reason;
    ``Ack.release(delay=60)`` and ``Ack.release("why", delay="10m")`` say when to try again. ``Ack.throttled()`` gives
    the record back uncounted, as a service has asked to wait. ``Ack.accept(cost=812)`` says what a record has cost.
    """

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3

    @staticmethod
    def accept(*, cost: float) -> Acceptance:
        """Return an acceptance that says what the record has cost, in any unit, as tokens of a model: a number of 0 or
        more; where it is the answer for many records, what they have cost together. ``delivery.cost.limit`` bounds the
        units of the group in a second."""
        return Acceptance(cost)

    @staticmethod
    def release(why: Reason = None, *, delay: float | str | None = None) -> Acknowledgement:
        """Return a release whose reason, a text or an exception, is kept as the record's last error. ``delay``: the
        least time until the next delivery, in seconds or as a duration (``30s``, ``10m``, ``PT1H``), at most 30 days;
        None: by the group's settings ``share.record.redelivery.backoff.*``. Raises ConfigError: not such a delay."""
        return Acknowledgement(Ack.RELEASE, why, None if delay is None else _delay_ms(delay))

    @staticmethod
    def throttled(why: Reason = None, *, retry_after: float | str | None = None) -> Throttle:
        """Return the answer for a record whose service has asked to wait (HTTP 429): the delivery does not count, and
        the record comes again after this time, in the form of ``delay``; None: one second. One that is throttled for
        longer than ``delivery.throttle.max.age`` is rejected. ``why`` is kept as for a release. Raises ConfigError: not
        such a time."""
        return Throttle(why, DEFAULT_THROTTLE_MS if retry_after is None else _delay_ms(retry_after))

    @staticmethod
    def reject(why: Reason) -> Acknowledgement:
        """Return a rejection whose reason, a text or an exception, is kept as the record's last error."""
        return Acknowledgement(Ack.REJECT, why)


class Acknowledgement(NamedTuple):
    """An acknowledgement with the reason for it. ``delay_ms``: that of a release, None if the handler asks for none."""

    ack: Ack
    error: Reason = None
    delay_ms: int | None = None


class Acceptance(NamedTuple):
    """An acceptance that says what was paid for (``costs``)."""

    cost: float


class Throttle(NamedTuple):
    """The request of a service to wait, with the reason and the time: the attempt is none."""

    error: Reason = None
    delay_ms: int = DEFAULT_THROTTLE_MS


OneAnswer = Ack | Acknowledgement | Acceptance | Throttle
"""The types of an answer which is that of all records, where a call has many."""


def _delay_ms(delay: float | str) -> int:
    if isinstance(delay, str):
        found = parse_duration_ms(delay)
    else:
        try:
            found = round(delay * 1_000)
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(f"not a delay: {delay!r} (write seconds, or 30s, 10m, PT1H)") from None
    if not 0 <= found <= MOST_DELAY_MS:
        raise ConfigError(f"a delay of {delay!r} is outside of 0 to 30 days")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The acknowledgements of a batch: ``codes`` (1, 2 or 3) and ``error_ids`` have one element per record.

    An error id of 0 is no error, n is ``texts[n - 1]``. Accepted records have none. Other codes are a ``Loss``.
    ``delays_ms``: those of released and throttled records, NO_DELAY where none was asked for; None: no record has one.
    ``misfits``: the number of records released because their answer broke the contract; the last text is of one of
    them. ``costs``: what records have cost, NO_COST where nobody says; None: nobody does.
    """

    codes: Codes
    error_ids: ErrorIds
    texts: tuple[str, ...] = ()
    misfits: int = 0
    delays_ms: DelaysMs | None = None
    costs: Costs | None = None

    @classmethod
    def concatenated(cls, parts: Sequence[Answers]) -> Answers:
        """Join the answers of several batches, one after another."""
        if len(parts) == 1:
            return parts[0]
        texts = tuple(text for part in parts for text in part.texts)
        before = np.cumsum([0, *(len(part.texts) for part in parts[:-1])])
        ids = [np.where(part.error_ids, part.error_ids + at, 0) for part, at in zip(parts, before, strict=True)]
        return cls(
            codes=np.concatenate([part.codes for part in parts]),
            error_ids=np.concatenate(ids).astype(np.int32),
            texts=texts,
            misfits=sum(part.misfits for part in parts),
            delays_ms=np.concatenate([part.every_delay_ms for part in parts]),
            costs=np.concatenate([part.every_cost for part in parts]),
        )

    def errors(self) -> dict[int, str]:
        """Return the errors by position."""
        return {int(at): self.texts[self.error_ids[at] - 1] for at in np.flatnonzero(self.error_ids)}

    @property
    def every_delay_ms(self) -> DelaysMs:
        """The delay of each record, NO_DELAY if none was asked for."""
        return np.full(len(self.codes), NO_DELAY, np.int64) if self.delays_ms is None else self.delays_ms

    @property
    def every_cost(self) -> Costs:
        """The cost of each record, NO_COST if nobody says it."""
        return np.full(len(self.codes), NO_COST) if self.costs is None else self.costs

    @property
    def cost(self) -> float:
        """The cost of all records together, as far as somebody says it."""
        return 0.0 if self.costs is None else float(np.nansum(self.costs))

    def delays(self) -> dict[int, int]:
        """Return the delays, in milliseconds, by position."""
        if self.delays_ms is None:
            return {}
        return {int(at): int(self.delays_ms[at]) for at in np.flatnonzero(self.delays_ms != NO_DELAY)}

    def with_delays(self, delays_ms: DelaysMs) -> Answers:
        """Return the answers with these delays; only released and throttled records keep theirs. A throttled one always
        has a delay."""
        is_throttled = self.codes == Loss.THROTTLED
        found = np.where((self.codes == Ack.RELEASE) | is_throttled, delays_ms, NO_DELAY)
        return replace(self, delays_ms=np.where(is_throttled & (found == NO_DELAY), DEFAULT_THROTTLE_MS, found))

    def with_misfits(self, misfits: dict[int, str]) -> Answers:
        """Return the answers with these records released instead, each for breaking the contract."""
        if not misfits:
            return self
        known = {text: number for number, text in enumerate(dict.fromkeys(map(error_text, misfits.values())), 1)}
        codes, ids, delays_ms = self.codes.copy(), self.error_ids.copy(), self.every_delay_ms.copy()
        for at, text in misfits.items():
            codes[at], ids[at] = Ack.RELEASE, len(self.texts) + known[error_text(text)]
            delays_ms[at] = NO_DELAY
        return Answers(
            codes=codes,
            error_ids=ids,
            texts=(*self.texts, *known),
            misfits=self.misfits + len(misfits),
            delays_ms=None if self.delays_ms is None else delays_ms,
            costs=self.costs,
        )

    def with_estimates(self, costs: Costs) -> Answers:
        """Return the answers with these costs where they say nothing. A throttled call costs nothing."""
        said = self.every_cost
        found = np.where(np.isnan(said), costs, said)
        return replace(self, costs=np.where(self.codes == Loss.THROTTLED, 0.0, found))

    def spread(self, rows: int, positions: npt.NDArray[np.int64], other: Ack | Loss = Ack.RELEASE) -> Answers:
        """Return answers for ``rows`` records: these for the ones at ``positions``, ``other`` for all others."""

        def filled(values: npt.NDArray[Any], value: float) -> npt.NDArray[Any]:
            found = np.full(rows, value, values.dtype)
            found[positions] = values
            return found

        return replace(
            self,
            codes=filled(self.codes, other),
            error_ids=filled(self.error_ids, 0),
            delays_ms=filled(self.every_delay_ms, NO_DELAY),
            costs=filled(self.every_cost, NO_COST),
        )

    @classmethod
    def same(cls, rows: int, code: int, error: str | None = None, delay_ms: int | None = None) -> Answers:
        """Return one answer for all of ``rows`` records."""
        noted = error is not None and code != Ack.ACCEPT
        return cls(
            delays_ms=None if delay_ms is None else np.full(rows, delay_ms, np.int64),
            codes=np.full(rows, code, np.int8),
            error_ids=np.full(rows, int(noted), np.int32),
            texts=(error_text(error),) if noted and error is not None else (),
        )

    @classmethod
    def listed(
        cls,
        codes: Sequence[int],
        errors: dict[int, str],
        delays: Mapping[int, int] | None = None,
        costs: Mapping[int, float] | None = None,
    ) -> Answers:
        """Return the answers of a code per record, and the errors, delays and costs by position in the batch."""
        texts: dict[str, int] = {}
        error_ids = np.zeros(len(codes), np.int32)
        for position, error in errors.items():
            if codes[position] != Ack.ACCEPT:
                error_ids[position] = texts.setdefault(error_text(error), len(texts) + 1)
        said = None
        if costs:
            said = np.full(len(codes), NO_COST)
            said[list(costs)] = list(costs.values())
        answers = cls(codes=np.array(codes, np.int8), error_ids=error_ids, texts=tuple(texts), costs=said)
        if not delays:
            return answers
        delays_ms = answers.every_delay_ms
        delays_ms[list(delays)] = list(delays.values())
        return answers.with_delays(delays_ms)


# ------------------------------------------------------------------------------ one record's answer

ACK_BY_NAME = {ack.name: int(ack) for ack in Ack} | {Loss.THROTTLED.name: int(Loss.THROTTLED)}
CHOICES = "Ack.ACCEPT, Ack.RELEASE or Ack.REJECT"


def single_answer(value: object) -> tuple[int, str | None, int | None]:
    """Return (code, error, delay in ms) of one record's answer: an Ack, an Acknowledgement, its number or its name, or
    a Throttle, whose code is ``Loss.THROTTLED``.

    Raises HandlerError for anything else, also for an object that raises when it is read; a bool is refused, as True
    would pass for an accept.
    """
    if type(value) is Ack:
        return int(value), None, None
    try:
        return _looked_at(value)
    except (HandlerError, *NO_FAULTS):
        raise
    except BaseException as fault:  # noqa: BLE001 - the user's code runs when its objects are looked at
        raise HandlerError(f"answered what cannot be looked at: {exception_text(fault)}") from None


def _looked_at(value: object) -> tuple[int, str | None, int | None]:
    """Return the ``single_answer`` of what is no plain Ack. Raises whatever the user's object raises."""
    if isinstance(value, Acceptance):
        return int(Ack.ACCEPT), None, None
    if isinstance(value, Acknowledgement | Throttle):
        code = int(Loss.THROTTLED) if isinstance(value, Throttle) else single_answer(value.ack)[0]
        delay_ms = _delay_of(code, _asked_delay_ms(value.delay_ms))
        return code, None if code == Ack.ACCEPT else reason_text(value.error), delay_ms
    number = exact_int(value)
    if number is not None and Ack.ACCEPT <= number <= Ack.REJECT:
        return number, None, None
    if isinstance(value, str) and (name := str.upper(value)) in ACK_BY_NAME:
        return ACK_BY_NAME[name], None, _delay_of(ACK_BY_NAME[name], None)
    refuse_coroutine(value)
    raise HandlerError(not_an_answer(value))


def _delay_of(code: int, asked_ms: int | None) -> int | None:
    """Return the delay of an answer for which this one was asked."""
    if code == Loss.THROTTLED:
        return DEFAULT_THROTTLE_MS if asked_ms is None else asked_ms
    return asked_ms if code == Ack.RELEASE else None


def _asked_delay_ms(value: object) -> int | None:
    """Return the delay in ms. Raises HandlerError if it is none."""
    if value is None:
        return None
    found = exact_int(int(value) if type(value) is float and value.is_integer() else value)
    if found is None or not 0 <= found <= MOST_DELAY_MS:
        raise HandlerError(f"answered with a delay_ms of {shown(value)}, not 0 to 30 days")
    return found


def exact_int(value: object) -> int | None:
    """Return a whole number, ignoring methods that a subclass overrides; None for anything else, and for a bool."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return None
    return operator.index(value)


def refuse_coroutine(value: object) -> None:
    """Raise HandlerError for a coroutine, and close it: Python warns of coroutines that nothing has awaited."""
    if isinstance(value, CoroutineType):
        value.close()
        raise HandlerError("returned a coroutine, which nothing awaits: a handler returns its answer (asyncio.run)")


def not_an_answer(value: object) -> str:
    return f"answered {shown(value)}, which is not {CHOICES}"
