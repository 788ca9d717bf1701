"""The page of a report: one self-contained HTML file. It reads and draws nothing itself."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["page_of"]

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 0.5em 0 1.5em } td, th { padding: 0.15em 0.8em; text-align: right }
th { border-bottom: 1px solid #999 } td.text, th.text { text-align: left } img { max-width: 100% }
p.note { color: #555 }
"""


def page_of(
    title: str, notes: Sequence[str], figures: Mapping[str, bytes], tables: Mapping[str, Sequence[Mapping[str, Any]]]
) -> str:
    """Return the page: title, notes, PNG figures by heading, and tables of equal keys by heading."""
    parts = [f"<h1>{escape(title)}</h1>", *(f'<p class="note">{escape(note)}</p>' for note in notes)]
    for name, png in figures.items():
        data = base64.b64encode(png).decode()
        parts.append(f'<h2>{escape(name)}</h2>\n<img alt="{escape(name)}" src="data:image/png;base64,{data}">')
    parts += [f"<h2>{escape(name)}</h2>\n{_table(rows)}" for name, rows in tables.items()]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th{_class(rows[0][name])}>{escape(name)}</th>" for name in rows[0])
    body = ("".join(f"<td{_class(value)}>{escape(_text(value))}</td>" for value in row.values()) for row in rows)
    return f"<table><tr>{head}</tr>\n" + "\n".join(f"<tr>{cells}</tr>" for cells in body) + "</table>"


def _class(value: Any) -> str:
    return ' class="text"' if isinstance(value, str) else ""


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
