"""What the documents' walkthroughs are compared by, and which commands and programs are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.walkthrough import Command, walk

DOCUMENT = """
```text
a picture
```

```python
# first.py
print(1)
```

```sh
python first.py
share-spark list \\
    --all
```

```text
COUNT ... ERROR
1     ... oops
```
"""


def test_programs_are_there_before_their_commands(tmp_path: Path) -> None:
    first, second = walk(DOCUMENT, tmp_path)
    assert (first, (tmp_path / "first.py").read_text()) == (Command("python first.py"), "# first.py\nprint(1)\n")
    assert (second.text.split(), second.shown) == (
        ["share-spark", "list", "--all"],
        "COUNT ... ERROR\n1     ... oops\n",
    )


@pytest.mark.parametrize(
    ("printed", "agrees"),
    [
        ("COUNT GROUP   ERROR\n1     billing oops\n", True),
        ("COUNT GROUP   ERROR\n1     billing oops", True),
        ("COUNT GROUP   ERROR\n2     billing oops\n", False),
        ("COUNT GROUP   ERROR\n1     billing oops\n1 more\n", False),
        ("one more\nCOUNT GROUP   ERROR\n1     billing oops\n", False),
        ("", False),
    ],
)
def test_what_is_printed_has_to_be_what_is_shown(printed: str, agrees: bool) -> None:
    assert Command("list", "COUNT ... ERROR\n1     ... oops\n").agrees(printed) is agrees
