"""Claims that no store has made."""

from __future__ import annotations

import uuid

from share_spark.engine.ports import Claim


def claim_of(group_id: str, directory: str = "nowhere", *, epoch: int = 1) -> Claim:
    """Of a new run, with the state log in ``directory``."""
    run_id = uuid.uuid4().hex[:12]
    return Claim(
        group_id=group_id,
        writer_epoch=epoch,
        run_id=run_id,
        member_id=f"spark-{run_id}",
        directory=directory,
        log_id="of the state log",
    )
