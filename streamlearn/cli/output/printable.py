"""Printable text: text from outside, made harmless for a terminal."""

from __future__ import annotations

__all__ = ["printable"]

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}


def printable(text: str) -> str:
    r"""Return a text with its control characters escaped, and further lines indented, as in logs.

    The text can then neither move the terminal's cursor nor fake a line of its own.

    Examples:
        >>> print(printable("red: \x1b[31m\nerror: fake"))
        red: \x1b[31m
          error: fake
    """
    return text.translate(_ESCAPES).replace("\n", "\n  ")
