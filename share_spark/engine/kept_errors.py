"""What the state log keeps of the errors of a micro-batch, for the audit. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from share_spark.engine.attempts import ErrorRun
from share_spark.engine.ports import AcknowledgedSpans
from share_spark.model.error_pattern import error_pattern
from share_spark.model.ids import SharePartitionKey

MOST_TEXT = 32 * 1_024
"""Characters of different errors in one micro-batch. The files of a segment of 500 with so many, compressed, are about
as large as what a restart reads without Spark (``state.direct_rows``)."""


def kept_errors(answers: AcknowledgedSpans) -> Mapping[SharePartitionKey, Sequence[ErrorRun]]:
    """Return the errors of each share-partition that has some, with at most MOST_TEXT characters of different texts.

    If there are more, ids and numbers in them count as ``#``, so that most are the same. If these are still too many,
    the most frequent ones are kept, and of each other one only that it is not.
    """
    errors = {key: span.errors for key, span in answers.items() if span.errors}
    found = Counter[str]()
    for runs in errors.values():
        for first, last, error in runs:
            found[error] += last - first + 1
    if _size(found) <= MOST_TEXT:
        return errors
    kept = _kept_texts(found)
    return {key: list(_joined(run._replace(error=kept[run.error]) for run in runs)) for key, runs in errors.items()}


def _kept_texts(found: Counter[str]) -> dict[str, str]:
    """By error, what is kept of it. ``found``: how many records have it."""
    pattern_of = {error: error_pattern(error) for error in found}
    patterns = Counter[str]()
    for error, records in found.items():
        patterns[pattern_of[error]] += records
    kept = set(_most_frequent(patterns))
    others = f"one of {len(patterns) - len(kept):,} more errors, of which the text is not kept"
    return {error: pattern if pattern in kept else others for error, pattern in pattern_of.items()}


def _most_frequent(found: Counter[str]) -> Iterator[str]:
    left = MOST_TEXT
    for error, _ in found.most_common():
        left -= len(error)
        if left < 0:
            return
        yield error


def _size(errors: Iterable[str]) -> int:
    return sum(map(len, errors))


def _joined(runs: Iterable[ErrorRun]) -> Iterator[ErrorRun]:
    """``runs``, ascending; those of the same error that follow each other as one."""
    before: ErrorRun | None = None
    for run in runs:
        if before is not None and (before.last + 1, before.error) == (run.first, run.error):
            before = before._replace(last=run.last)
            continue
        if before is not None:
            yield before
        before = run
    if before is not None:
        yield before
