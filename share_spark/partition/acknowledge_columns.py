"""Acknowledgements of many ranges: the frequent case, in which nothing is refused, by operations on whole columns.

One type for each range, ascending, and no two overlap:

    runs               [A1 mine-][D1][A1 mine][V1][A2 mine]
    acknowledgements   [ok][ok--]        [ok-]    [ok-----]
    ended              [ok][ok--]        [ok-]    [ok-----]
"""

from __future__ import annotations

from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.model.requests import Acknowledge, AcknowledgementBatch, AcknowledgeType
from share_spark.partition.columns import Columns, as_columns, from_offset, intersection, is_columns
from share_spark.partition.draft import Draft
from share_spark.partition.request_effects import Ended, RequestEffects, ending


def ended_in_columns(draft: Draft, request: Acknowledge) -> Ended | None:
    """What ``request`` ends, as (run, types). None where it has to go run by run: there are few, some are renewed, some
    have a type per offset, or something is to be refused."""
    many = is_columns(draft.runs) or is_columns(request.batches)
    if not many or draft.fetched or not draft.runs or not request.batches:
        return None
    runs, batches = as_columns(draft.runs), as_columns(request.batches)
    if not _is_plain(batches) or not _is_inside(batches, runs, draft.start):
        return None
    ended = intersection(ending, runs, from_offset(batches, draft.start))
    is_held = [
        run.delivery_state is DeliveryState.ACQUIRED and run.member_id == request.member_id for run, _ in ended.samples
    ]
    return ended if all(is_held) else None


def end_acknowledged(outcome: RequestEffects, run: InFlightBatch, types: tuple[int, ...]) -> None:
    """The rule for ``Ended`` of an acknowledgement."""
    outcome.acknowledge(run.first_offset, run.last_offset, run.delivery_count, types[0])


def _is_plain(batches: Columns[AcknowledgementBatch]) -> bool:
    """Nothing that the checks without state could refuse (R48), and no renewal."""
    types = [batch.types for batch in batches.samples]
    if any(len(one) != 1 or not AcknowledgeType.GAP <= one[0] <= AcknowledgeType.REJECT for one in types):
        return False
    ascend = bool((batches.first[1:] > batches.last[:-1]).all())
    return ascend and batches.first[0] >= 0 and bool((batches.first <= batches.last).all())


def _is_inside(batches: Columns[AcknowledgementBatch], runs: Columns[InFlightBatch], start: int) -> bool:
    """Whether what counts of ``batches``, at or above the SPSO, begins and ends inside the window."""
    counted = len(from_offset(batches, start))
    begins_before = counted and start <= batches.first[-counted] < runs.first[0]
    return not counted or bool(not begins_before and batches.last[-1] <= runs.last[-1])
