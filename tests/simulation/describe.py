"""Fates and states in few words, for traces and verdicts."""

from __future__ import annotations

from share_spark.model.requests import AcknowledgeType
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


_LETTERS = {0: "V", AcknowledgeType.ACCEPT: "Q", 2: "D", 4: "X"}


def brief(record: object) -> str:
    """``SPSO: runs`` with V available, Q acquired, D acknowledged, X archived and the delivery count."""
    runs = [
        f"{run[0]}-{run[1]} {_LETTERS[run[2]]}{run[3]}" + (f"?{run[6]}" if run[6] else "")
        for run in record.batches  # type: ignore[attr-defined]
    ]
    kind = "snapshot " if type(record).__name__ == "ShareSnapshot" else ""
    return f"{kind}{record.start_offset}: {', '.join(runs)}"  # type: ignore[attr-defined]
