"""TokenFile: a file that holds the token that callers have to send."""

from __future__ import annotations

from pathlib import Path

from streamlearn.errors import UsageError

__all__ = ["read_token"]

_TOKEN_BYTES_MAX = 1_024


def read_token(path: Path) -> bytes:
    """The token in a file, without surrounding white space.

    Raises:
        UsageError: The file is unreadable, or holds no token or anything but printable ASCII without spaces.
    """
    try:
        with path.open("rb") as file:
            token = file.read(_TOKEN_BYTES_MAX + 2).strip()
    except OSError as error:
        message = f"the token file {path} cannot be read: {error.strerror}"
        raise UsageError(message, help="give a file that holds the token and nothing else") from None
    if not 0 < len(token) <= _TOKEN_BYTES_MAX:
        message = f"the token file {path} does not hold a token of 1 to {_TOKEN_BYTES_MAX} bytes"
        raise UsageError(message, help="write one with `openssl rand -hex 32`")
    if not all(0x21 <= byte <= 0x7E for byte in token):
        message = f"the token file {path} holds a space, or a character that is not printable ASCII"
        raise UsageError(message, help="write a token with `openssl rand -hex 32`")
    return token
