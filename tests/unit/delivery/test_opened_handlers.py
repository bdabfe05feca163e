"""The handlers that a worker keeps open."""

from __future__ import annotations

import pytest

from share_spark.delivery import opened_handlers
from share_spark.delivery.opened_handlers import opened_handler
from share_spark.delivery.packed_handler import packed
from share_spark.handlers.handler import as_handler
from share_spark.model.errors import HandlerError

NOTED: list[str] = []


class Ask:
    def __init__(self, name: str) -> None:
        self.name = name

    def open(self) -> None:
        NOTED.append(f"open {self.name}")
        if self.name == "broken":
            raise ConnectionError("no model")

    def __call__(self, record): ...

    def close(self) -> None:
        NOTED.append(f"close {self.name}")


@pytest.fixture(autouse=True)
def _no_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_handlers, "_opened", {})
    monkeypatch.setattr(opened_handlers, "at_worker_end", lambda _: None)
    NOTED.clear()


def ask(name: str) -> None:
    opened_handler(name, packed(as_handler(Ask(name))))


def test_a_handler_is_opened_once_and_closed_when_four_others_were_used_since() -> None:
    for name in "abcda":
        ask(name)
    assert NOTED == ["open a", "open b", "open c", "open d"]
    ask("e")
    assert NOTED[4:] == ["open e", "close b"]
    opened_handlers._close_all()
    assert sorted(NOTED[6:]) == ["close a", "close c", "close d", "close e"]


def test_one_that_cannot_be_opened_is_not_kept() -> None:
    for _ in range(2):
        with pytest.raises(HandlerError, match=r"Ask: open\(\) failed: ConnectionError: no model$"):
            ask("broken")
    assert NOTED == ["open broken"] * 2
