"""Printable text: text from outside, made harmless for a terminal."""

from __future__ import annotations

__all__ = ["printable"]

# Control characters, separators of lines, and marks that reverse the direction of writing.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))} | {
    code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}


def printable(text: str) -> str:
    r"""Return a text with its control characters escaped, and further lines indented, as in logs.

    The text can then neither move the terminal's cursor nor fake a line of its own.

    Examples:
        >>> print(printable("red: \x1b[31m\nerror: fake"))
        red: \x1b[31m
          error: fake
    """
    return text.translate(_ESCAPES).replace("\n", "\n  ")
