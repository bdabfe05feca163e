"""The judgement on a call: an answer for each of its records, from what it has returned or raised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from share_spark.delivery.judging import Contract, Judged, judged
from share_spark.delivery.ledger import STATUS_OF, CallStatus
from share_spark.handlers.acknowledgement import Ack, OneAnswer, refuse_coroutine
from share_spark.handlers.costs import CostError, estimate
from share_spark.handlers.error_texts import exception_text, shown
from share_spark.handlers.handler import Handler, Record
from share_spark.handlers.kinds import HandlerKind
from share_spark.handlers.throttling import throttle_of
from share_spark.handlers.values import UndecodableError
from share_spark.model.errors import HandlerError

ACCEPTED = (Judged(int(Ack.ACCEPT), None, None, [], int(CallStatus.ACCEPTED)),)
"""The judgement on a call with one record that was accepted."""


class Prepared(NamedTuple):
    """The argument of a call for a record, and what the call will cost."""

    argument: Any
    cost: float


class Judgement:
    """The judgement on the calls of one handler. ``contract``: how it keeps its contract."""

    def __init__(self, handler: Handler) -> None:
        self.contract = Contract()
        self._name, self._is_list = handler.name, handler.kind is HandlerKind.LIST
        self._cost = handler.cost
        # Threads decode by themselves: it may take time, as that of a service.
        self._argument_of = None if handler.threads is not None else handler.argument_of
        self._names = None if handler.output is None else dict.fromkeys(handler.output.names)

    def is_plain_accept(self, answer: Any) -> bool:
        """Return whether this is the usual answer for one record: it needs no look at an object of the user's."""
        return (answer is None or answer is Ack.ACCEPT) and not self._is_list

    def of_answer(self, answer: Any, records: int) -> Sequence[Judged]:
        """Judge what was returned. Raises HandlerError: it is no answer for so many records."""
        if not self._is_list:
            return [self._one(answer)]
        if isinstance(answer, list):
            answers = list.copy(answer)
            if len(answers) != records:
                raise HandlerError(f"handler {self._name} returned {len(answers)} answers for {records} records")
            return [self._one(one) for one in answers]
        if isinstance(answer, OneAnswer):
            one = self._one(answer)
            return [one if one.cost is None else one._replace(cost=one.cost / records)] * records
        refuse_coroutine(answer)
        text = f"handler {self._name} returned {shown(answer)}, not a list with an answer for each record, or one Ack"
        raise HandlerError(text)

    def of_fault(self, fault: BaseException, records: int) -> Sequence[Judged]:
        """Judge what was raised: it is the answer for all."""
        if isinstance(fault, UndecodableError):  # of the one record that a thread has
            return [_rejected(str(fault))] * records
        throttle = throttle_of(fault)
        return [released(exception_text(fault)) if throttle is None else self._one(throttle)] * records

    @property
    def prepares(self) -> bool:
        """Whether there is something to do before a call."""
        return self._cost is not None or self._argument_of is not None

    def prepared(self, record: Record) -> Prepared | Judged:
        """Return what a call gets for a record; if there is no call for it, the judgement on the record: its value
        cannot be decoded, or the cost function fails."""
        try:
            argument = record if self._argument_of is None else self._argument_of(record)
        except BaseException as fault:  # noqa: BLE001 - what a decoder raises is an answer
            return self.of_fault(fault, 1)[0]
        try:
            return Prepared(argument, 0.0 if self._cost is None else estimate(self._cost, record))
        except CostError as fault:
            return self._misfit(fault)

    def _one(self, answer: Any) -> Judged:
        """Judge the answer for a record. One that is none releases it."""
        if answer is None or answer is Ack.ACCEPT:
            return ACCEPTED[0]
        try:
            return judged(answer, self._names)
        except HandlerError as fault:
            return self._misfit(fault)

    def _misfit(self, fault: HandlerError) -> Judged:
        self.contract.note_misfit(str(fault))
        return released(str(fault))


def released(error: str) -> Judged:
    """Return a release with this error."""
    return Judged(int(Ack.RELEASE), error, None, [], int(CallStatus.RELEASED))


def _rejected(error: str) -> Judged:
    return Judged(int(Ack.REJECT), error, None, [], int(STATUS_OF[int(Ack.REJECT)]), cost=0.0)
