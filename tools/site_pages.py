"""Pages of the site that lie outside of `docs`, such as the README: mkdocs calls this as a hook when it builds."""

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
"""Which file of the source each page of the site is."""
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])+)\]\(([^()\s#:]+)(#[^()\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them to those that mkdocs has found."""
    from mkdocs.structure.files import File

    for page in PAGES:
        files.append(File.generated(config, page, content=site_page(page)))
    return files


def site_page(page: str) -> str:
    """A page as the site has it: its links lead to pages of the site, and what is none is named by its path.

    Args:
        page: One of `PAGES`.
    """
    source = PAGES[page]
    folder = Path(source).parent.as_posix()

    def linked(found: re.Match[str]) -> str:
        path = normpath(f"{folder}/{found[2]}")
        if not (ROOT / path).exists():
            return found[0]  # no link, such as a call in code
        anchor = found[3] or ""
        for name, origin in PAGES.items():
            if path == origin:
                return f"[{found[1]}]({name}{anchor})"
        if path.startswith("docs/"):
            return f"[{found[1]}]({path.removeprefix('docs/')}{anchor})"
        return f"`{path}`" if found[1].strip("`") == path else f"{found[1]} (`{path}`)"

    return _LINK.sub(linked, (ROOT / source).read_text())
