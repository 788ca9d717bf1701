"""The URL of a store: the file system and the path on it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from streamlearn.errors import UsageError

__all__ = ["StoreUrl", "check_path", "is_path", "parse_store_url"]

_PROTOCOL_AND_SLASH = re.compile(r"[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
_PROTOCOL = re.compile(r"[a-z][a-z0-9+.-]*")
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_PATH_CHARS_MAX = 1_000
_HELP = "a store is a folder, file:///FOLDER, memory://NAME, s3://BUCKET/FOLDER, or another URL that fsspec supports"


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A parsed URL.

    Attributes:
        protocol: fsspec's name of the file system; "file" for a local folder.
        root: The store's path on it; absolute for a local folder.
    """

    protocol: str
    root: str

    def __str__(self) -> str:
        return f"{self.protocol}://{self.root}"


def parse_store_url(url: str) -> StoreUrl:
    """Parse the URL of a store, or the path of a folder.

    Raises:
        UsageError: The URL is invalid. For a URL with credentials the message does not repeat it.

    Examples:
        >>> parse_store_url("s3://models/ctr")
        StoreUrl(protocol='s3', root='models/ctr')
    """
    if "://" not in url:
        if _PROTOCOL_AND_SLASH.match(url):
            message = "a store URL needs two slashes after the name of its protocol"
            raise UsageError(message, help=_HELP)
        if not url or "\0" in url:
            message = f"{url!r} is not a store URL"
            raise UsageError(message, help=_HELP)
        return StoreUrl("file", str(Path(url).expanduser().absolute()))
    parts = urlsplit(url)
    if parts.scheme not in ("file", "local") and ("@" in url or "%40" in url or parts.query):
        message = "a store URL must not contain credentials or options"
        raise UsageError(message, help="give them as options, or in the environment of the file system's client")
    if parts.scheme in ("file", "local"):
        path = Path(unquote(parts.path))
        if parts.netloc in ("", "localhost") and path.is_absolute() and not parts.query:
            return StoreUrl("file", str(path))
    elif _PROTOCOL.fullmatch(parts.scheme) and parts.netloc:
        root = (parts.netloc + parts.path).rstrip("/")
        if ".." not in root.split("/"):
            return StoreUrl(parts.scheme, root)
    # The part before an @ may be a password, so the URL is not repeated.
    message = "a store URL must not contain an @" if "@" in url else f"{url!r} is not a store URL"
    raise UsageError(message, help=_HELP)


def is_path(path: str) -> bool:
    """Whether this is a path within a store, and cannot lead out of it."""
    return len(path) <= _PATH_CHARS_MAX and _PATH.fullmatch(path) is not None


def check_path(path: str) -> str:
    """Return a path within a store; raises `UsageError` if it is invalid or could lead out of it."""
    if not is_path(path):
        message = f"{path[:_PATH_CHARS_MAX]!r} is not a path within a store"
        help = "use names of letters, digits, `_`, `-` and `.`, separated by `/`; a name must not begin with a dot"
        raise UsageError(message, help=help)
    return path
