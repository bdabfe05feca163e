"""What the tests of topics share."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from share_spark.topics import decoded_files


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are opened, in order."""
    found: list[str] = []
    open_file = decoded_files._opened

    def noted(path: str) -> pq.ParquetFile:
        found.append(path)
        return open_file(path)

    monkeypatch.setattr(decoded_files, "_opened", noted)
    return found
