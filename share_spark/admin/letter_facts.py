"""The facts of a dead letter besides its key, value and headers, in words. Pure; the text cannot control a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from share_spark.admin.letters import Letter
from share_spark.admin.redriven_record import REDRIVE_ID, delivered_before
from share_spark.model.texts import printable

NONE = "-"
"""The text for a missing value."""


def letter_facts(letter: Letter) -> Iterator[tuple[str, str]]:
    """Yield (name, text). An error may have several lines."""
    before = delivered_before(letter)
    yield "archived", letter_time(letter.archived_at)
    yield "reason", printable(letter.reason)
    yield "deliveries", f"{letter.delivery_count}" + (f", and {before} before it was redriven" if before else "")
    yield "error", "\n".join(map(printable, (letter.error or NONE).splitlines() or [""]))
    yield "record time", NONE if letter.timestamp is None else letter_time(letter.timestamp)
    if from_id := dict(letter.headers).get(REDRIVE_ID):
        yield "redriven from", f"the letter with redrive id {printable(from_id.decode(errors='replace'))}"
    if letter.redriven_at is not None:
        yield "redriven", f"{letter_time(letter.redriven_at)}, redrive id {printable(str(letter.redrive_id))}"


def letter_time(moment: datetime) -> str:
    """Return the time to the millisecond."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
