"""How many examples a property test plays."""

from __future__ import annotations

from hypothesis import settings

_ALL = settings.get_profile("all").max_examples


def examples(many: int) -> int:
    """``many`` in `make test-all`; in `make test` the same part of them as of Hypothesis's default number."""
    return many * settings().max_examples // _ALL
