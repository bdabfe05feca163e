"""Fates and states in few words, for traces and verdicts."""

from __future__ import annotations

from share_spark.model.records import DeliveryState
from tests.simulation.facts import At, Fate


def needs_letter(fate: Fate) -> bool:
    return fate.kind in ("rejected", "delivery limit reached") and not fate.may_have_letter


def difference(found: list[At], wanted: list[At]) -> str:
    extra, missing = list(found), []
    for one in wanted:
        if one in extra:
            extra.remove(one)
        else:
            missing.append(one)
    return f"extra {extra}, missing {missing}"


_LETTERS = {
    DeliveryState.AVAILABLE: "V",
    DeliveryState.ACQUIRED: "Q",
    DeliveryState.ACKNOWLEDGED: "D",
    DeliveryState.ARCHIVED: "X",
}


def brief(record: object) -> str:
    """``SPSO: runs`` with V available, Q acquired, D acknowledged, X archived and the delivery count, less what
    does not count towards the limit."""
    runs = [
        f"{run.first_offset}-{run.last_offset} {_LETTERS[run.delivery_state]}{run.delivery_count}"
        + (f"-{run.excused}" if run.excused else "")
        + (f"?{run.doubt}" if run.doubt else "")
        for run in record.batches  # type: ignore[attr-defined]
    ]
    kind = "snapshot " if type(record).__name__ == "ShareSnapshot" else ""
    return f"{kind}{record.start_offset}: {', '.join(runs)}"  # type: ignore[attr-defined]
