"""Answers of a delivery, written as rows (first offset, last offset, answer)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from share_spark.model.requests import ANSWERS, AnsweredRange
from share_spark.partition.columns import coded

_MEANINGS = {number: (answer,) for number, answer in ANSWERS.items()}


def answered(rows: Iterable[Sequence[int]] | NDArray[np.int64]) -> Sequence[AnsweredRange]:
    """The ranges in the form in which the engine has them: many are columns."""
    ranges = np.array(rows if isinstance(rows, np.ndarray) else [*rows], np.int64).reshape(-1, 3)
    return coded(AnsweredRange, ranges[:, 0], ranges[:, 1], ranges[:, 2], _MEANINGS)
