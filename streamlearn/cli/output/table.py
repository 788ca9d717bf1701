"""The result of a verb on stdout: a table for people, or one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from streamlearn.printable import printable

__all__ = ["print_facts", "print_json", "print_table", "without_empty"]

_WIDTH_MAX = 10_000


def print_json(value: Any) -> None:
    """Print one JSON document."""
    json.dump(value, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def print_facts(heading: str, facts: Mapping[str, Any]) -> None:
    """Print a table of names and values."""
    print_table([{heading: name, "": value} for name, value in facts.items()])


def print_table(rows: Sequence[Mapping[str, Any]], title: str = "", *, whole: bool = False) -> None:
    """Print rows of equal keys as a table; None is an empty cell. With `whole`, no cell is folded or cut.

    Texts are shown as they are: markup in them has no effect, and control characters are escaped.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown_title = Text(printable(title), style="table.title") if title else None
    table = Table(title=shown_title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in rows[0] if rows else ():
        justify = "right" if any(_is_number(row[name]) for row in rows) else "left"
        table.add_column(Text(printable(name)), overflow="fold", justify=justify, no_wrap=whole)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(printable(_text(value))) for value in row.values()))
    console = Console(highlight=False)
    if whole:
        needed = Console(width=_WIDTH_MAX).measure(table).maximum
        console = Console(highlight=False, width=max(console.width, needed))
    console.print(table)


def without_empty(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows without those of the columns that no row has a value of."""
    empty = {name for name in names if all(row.get(name) is None for row in rows)}
    return [{name: value for name, value in row.items() if name not in empty} for row in rows]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    return f"{value:,}" if _is_number(value) else str(value)
