"""Pages of the documentation that the code itself says: `python -m tools.write_docs` writes them."""

from __future__ import annotations

from pathlib import Path

from streamlearn.config import fields_of
from streamlearn.settings import Settings

__all__ = ["settings_page"]

DOCS = Path(__file__).parent.parent / "docs"


def settings_page() -> str:
    """docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Everything `app.toml` may say, by section. `--set SECTION.NAME=VALUE` lays a value over it for one run;",
        "`streamlearn settings APP` shows what an application runs with. An unknown key or a wrong type is refused.",
        "",
        "<!-- written by python -m tools.write_docs -->",
    ]
    section = ""
    for field in fields_of(Settings):
        found, _, name = field.path.partition(".")
        if found != section:
            section = found
            lines += ["", f"## [{section}]", "", "| setting | type | default | what it is |", "|---|---|---|---|"]
        kind = field.type.replace("|", "\\|")
        lines.append(f"| `{name}` | {kind} | `{field.default!r}` | {field.description} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (DOCS / "settings.md").write_text(settings_page())
