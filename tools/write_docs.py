"""Pages that the code itself says, and the dashboard: `python -m tools.write_docs` writes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from streamlearn.config import fields_of
from streamlearn.settings import Settings
from tools.commands_page import commands_page
from tools.dashboard import dashboard_json
from tools.metrics_page import metrics_page

__all__ = ["PAGES", "settings_page"]

ROOT = Path(__file__).parent.parent


def settings_page() -> str:
    """docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Everything `app.toml` may say, by section. `--set SECTION.NAME=VALUE` lays a value over it for one run;",
        "`streamlearn settings APP` shows what an application runs with. An unknown key or a wrong type is refused.",
        "",
        "The environment names addresses and secrets, and no setting: `STREAMLEARN_KAFKA_PASSWORD` is the password",
        "that goes with `kafka.sasl_username`. It is in no file, no log and no message.",
        "",
        "<!-- written by python -m tools.write_docs -->",
    ]
    section = ""
    for field in fields_of(Settings):
        found, _, name = field.path.partition(".")
        if found != section:
            section = found
            lines += [
                "",
                f"## [{section}]",
                "",
                _said(section),
                "",
                "| setting | type | default | what it is |",
                "|---|---|---|---|",
            ]
        kind = field.type.replace("|", "\\|")
        lines.append(f"| `{name}` | {kind} | `{field.default!r}` | {field.description} |")
    return "\n".join(lines) + "\n"


def _said(section: str) -> str:
    """What the section's docstring says it is for."""
    doc = inspect.getdoc(type(getattr(Settings(), section)))
    assert doc is not None
    return " ".join(doc.split())


PAGES: dict[str, Callable[[], str]] = {
    "docs/commands.md": commands_page,
    "docs/metrics.md": metrics_page,
    "docs/settings.md": settings_page,
    "packaging/grafana/streamlearn.json": dashboard_json,
}
"""What the code says itself, by its file."""

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / name).write_text(page())
