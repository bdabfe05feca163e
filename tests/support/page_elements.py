"""What is in a page."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "path", "input", "polyline"}


class Elements(HTMLParser):
    """Tags are closed in order; all text is kept, and all that could load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        found = dict(attrs)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.loads += [value or "" for name, value in attrs if name in ("src", "srcset", "data")]
        assert not (found.get("action") or "/").startswith(("//", "http")), "only of the same server"
        self.loads += [found["href"] or ""] if tag == "link" else []
        assert "style" not in found, "the policy forbids it"
        assert not any(name.startswith("on") for name in found)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)
