"""How a verb prints its result: a table for people, or one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["print_json", "print_table"]

_WIDTH_MAX = 10_000


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def print_table(rows: Sequence[Mapping[str, Any]], title: str = "", *, whole: bool = False) -> None:
    """A table on stdout; the first row's keys are its head.

    Args:
        rows: Of equal keys; None is printed as nothing.
        title: Above it.
        whole: Whether words and numbers stay whole, on lines as long as they are.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in rows[0] if rows else ():
        justify = "right" if any(_is_number(row[name]) for row in rows) else "left"
        table.add_column(name, overflow="fold", justify=justify, no_wrap=whole)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    console = Console(highlight=False)
    if whole:
        needed = Console(width=_WIDTH_MAX).measure(table).maximum
        console = Console(highlight=False, width=max(console.width, needed))
    console.print(table)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    return f"{value:,}" if _is_number(value) else str(value)
