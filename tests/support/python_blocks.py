"""The programs in a document."""

from __future__ import annotations

import re


def python_blocks(document: str) -> list[str]:
    """Return them, in their order."""
    return re.findall(r"^```python\n(.*?)^```", document, re.MULTILINE | re.DOTALL)
