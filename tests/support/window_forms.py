"""Windows in either form, whatever their size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from share_spark.partition import columns

ALWAYS, NEVER = 1, 2**62


@contextmanager
def columns_from(count: int) -> Iterator[None]:
    """So many ranges, and more, are columns."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "COLUMNS_FROM", count)
        yield
