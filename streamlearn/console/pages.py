"""Pages: the files of the page, read from the package once. A request's path never becomes a path on disk."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from streamlearn.console.answer import Answer

__all__ = ["read_pages"]

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def read_pages() -> dict[str, Answer]:
    """Return the files of the page by request path."""
    pages = {}
    for file in files("streamlearn.console").joinpath("page").iterdir():
        kind = _KINDS.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            data = file.read_bytes()
            etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
            pages[f"/{file.name}"] = Answer(200, data, kind, {"ETag": etag}, is_static=True)
    pages["/"] = pages["/index.html"]
    return pages
