"""What a user sees who imports the package: names, help, signatures."""

from __future__ import annotations

import importlib.metadata
import inspect
import pydoc
import subprocess
import sys

import pytest

import share_spark
from share_spark import EmbeddedTopicLog


def test_every_public_name_is_there_and_documented() -> None:
    assert set(share_spark.__all__) <= set(dir(share_spark))
    undocumented = [name for name in share_spark.__all__ if not inspect.getdoc(getattr(share_spark, name))]
    assert undocumented == []


def test_a_public_name_is_one_of_the_package() -> None:
    assert sorted(share_spark._MODULE_OF) == sorted(share_spark.__all__)
    with pytest.raises(AttributeError, match="no attribute 'ShareGruop'"):
        _ = share_spark.ShareGruop


def test_the_version_is_that_of_the_package() -> None:
    assert share_spark.__version__ == importlib.metadata.version("share_spark")


def test_help_shows_the_public_classes() -> None:
    text = pydoc.plain(pydoc.render_doc(share_spark))
    assert "class ShareGroup(" in text
    assert "class FencedError(" in text
    assert "record_history(" in text


def test_the_docstring_names_every_public_name() -> None:
    words = set((share_spark.__doc__ or "").replace(",", " ").split())
    assert set(share_spark.__all__) - words == set()


def test_looking_at_the_names_imports_nothing() -> None:
    code = "import sys, share_spark; dir(share_spark); sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_methods_of_an_embedded_topic_log_are_on_the_class() -> None:
    wanted = {"create_topic", "add_partitions", "delete_topic", "append", "delete_records", "remove_offsets"}
    assert wanted <= set(dir(EmbeddedTopicLog))
    assert all(inspect.getdoc(getattr(EmbeddedTopicLog, name)) for name in wanted)
