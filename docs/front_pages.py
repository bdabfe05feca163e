"""Pages of the site that are files of the project itself: the README is its first page. Called by mkdocs (mkdocs.yml).

Links between documents are written for GitHub. Here they become those of the site, and a link to a file that the site
does not have becomes its text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md"} | {name: name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")}
"""The page of the site for each file of the project that is one."""

_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s:]+)(#[^)]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the front pages."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Return the text of a page with the links of the site."""
    folder = ROOT if page.file.src_uri in PAGES.values() else ROOT / "docs"

    def linked(found: re.Match[str]) -> str:
        text, target, anchor = found.groups(default="")
        place = _page_of((folder / target).resolve())
        return f"[{text}]({place}{anchor})" if files.get_file_from_path(place) else text

    parts = _CODE.split(markdown)
    return "".join(part if _CODE.match(part) else _LINK.sub(linked, part) for part in parts)


def _page_of(path: Path) -> str:
    """Return the page that a file of the project is, or would be."""
    name = str(path.relative_to(ROOT))
    return PAGES.get(name, name.removeprefix("docs/"))
