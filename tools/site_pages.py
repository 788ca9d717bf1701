"""Site pages from outside of `docs`, such as the README. mkdocs calls this module as a hook when it builds."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

__all__ = ["PAGES", "on_files", "site_page"]

ROOT = Path(__file__).parent.parent
PAGES = {
    "quickstart.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "schemas.md": "schemas/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
"""Source file of each page."""
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])+)\]\(([^()\s#:]+)(#[^()\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to the files of mkdocs."""
    from mkdocs.structure.files import File

    for page in PAGES:
        files.append(File.generated(config, page, content=site_page(page)))
    return files


def site_page(page: str) -> str:
    """Return a page of `PAGES` with links to pages of the site; links to other files become their paths."""
    source = PAGES[page]
    folder = Path(source).parent.as_posix()

    def site_link(match: re.Match[str]) -> str:
        path = normpath(f"{folder}/{match[2]}")
        if not (ROOT / path).exists():
            return match[0]  # not a link, such as a call in code
        anchor = match[3] or ""
        for name, origin in PAGES.items():
            if path == origin:
                return f"[{match[1]}]({name}{anchor})"
        if path.startswith("docs/"):
            return f"[{match[1]}]({path.removeprefix('docs/')}{anchor})"
        return f"`{path}`" if match[1].strip("`") == path else f"{match[1]} (`{path}`)"

    return _LINK.sub(site_link, (ROOT / source).read_text())
