"""The start of companions: here beside the driver, where there is one (``executors`` has them on a cluster)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from share_spark.companion.companions import Companion, Companions
from share_spark.companion.link import Link
from share_spark.companion.lost_calls import MOST_FILES
from share_spark.companion.messages import Begin, Limits
from share_spark.companion.process import CompanionProcess
from share_spark.delivery.packed_handler import packed
from share_spark.delivery.record_sources import most_rows
from share_spark.handlers.handler import HANDLER_COLUMNS, Handler
from share_spark.handlers.handler_objects import has_close

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_CALLS = Limits(0, 0)
"""The limits of a companion before it has a share."""


@dataclass(slots=True, kw_only=True)
class CompanionStarts:
    """The start of the companions of one delivery; they are added to ``companions``. ``directory``: of their ledgers,
    in which each has numbers of its own."""

    spark: SparkSession
    handler: Handler
    ordered: bool
    directory: Path
    companions: Companions
    _started: int = field(default=0, init=False)

    def see_to_it(self) -> None:
        """See to it that a companion takes records. Raises HandlerError (the handler cannot be sent)."""
        if not self.companions.taking:
            self._begin_beside_driver()

    def note_lost(self) -> None:
        """Note that a companion has ended: another one starts when there is none."""

    def note_idle(self) -> None:
        """Note that no calls are in flight: that costs nothing here."""

    def stop_waiting(self) -> None:
        """Do nothing: nobody waits for a start."""

    def close(self) -> None:
        """Do nothing: what was started is with ``companions``."""

    def _begin_beside_driver(self) -> None:
        process = CompanionProcess(self.companions.heard, has_close=has_close(self.handler))
        self._begin(process, self._next_ledger(self.directory))

    def _next_ledger(self, directory: str | Path) -> Path:
        self._started += 1
        return Path(directory) / str((self._started - 1) * MOST_FILES)

    def _begin(self, link: Link, ledger: Path) -> None:
        """Add a companion, and let it begin."""
        self.companions.add(Companion(link=link, ledger=ledger, limits=_NO_CALLS))
        begin = Begin(
            handler=packed(self.handler),
            name=self.handler.name,
            columns=tuple(self.handler.columns or HANDLER_COLUMNS),
            ledger=str(ledger),
            limits=_NO_CALLS,
            most_rows=most_rows(self.spark),
            in_threads=self.handler.threads is not None,
            ordered=self.ordered,
        )
        link.send(begin)
