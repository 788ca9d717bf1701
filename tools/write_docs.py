"""Generated pages and the dashboard: `python -m tools.write_docs` writes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from streamlearn.config import Field, fields_of
from streamlearn.settings import Settings
from tools.commands_page import commands_page
from tools.dashboard import dashboard_json
from tools.helm_chart import chart_pages
from tools.metrics_page import metrics_page

__all__ = ["FIRST", "PAGES", "settings_page"]

ROOT = Path(__file__).parent.parent
FIRST = (
    "topics.root", "topics.time", "kafka.security_protocol", "kafka.sasl_mechanism", "kafka.sasl_username",
    "ingest.runner", "ingest.out_of_orderness_s", "ingest.dead_share_max", "ingest.job_endpoint", "join.logged_share",
    "tables.optimizer", "tables.rate", "tables.idle_s", "trainer.step_rows", "trainer.rate", "trainer.device",
    "versions.store", "registry.url", "publisher.publish_interval_s", "publisher.on_reject",
    "judge.auc_drop_ratio_max", "judge.log_loss_rise_ratio_max", "retention.keep_s", "front.listen", "front.http",
    "front.deadline_ms", "impressions.write_back", "up.nodes", "console.listen", "telemetry.listen",
)  # fmt: skip
"""The settings that a new user meets."""


def settings_page() -> str:
    """Return the text of docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Write settings into `app.toml`, each under its section. `--set SECTION.NAME=VALUE` changes one for one run.",
        "`streamlearn settings APP` shows the values of an application. Unknown keys and wrong types are refused.",
        "",
        "Secrets come from the environment and never appear in a file, a log or a message.",
        "`STREAMLEARN_KAFKA_PASSWORD` is the password for `kafka.sasl_username`.",
        "",
        "<!-- written by python -m tools.write_docs -->",
        "",
        "## The first settings",
        "",
        "Most applications need no others.",
        "",
        *_HEAD,
    ]
    fields = fields_of(Settings)
    lines += [_row(field, field.path) for path in FIRST for field in fields if field.path == path]
    lines += ["", "All others follow by section, for operators."]
    section = ""
    for field in fields:
        if field.path in FIRST:
            continue
        name, _, last = field.path.partition(".")
        if name != section:
            section = name
            lines += ["", f"## [{section}]", "", _purpose(section), "", *_HEAD]
        lines.append(_row(field, last))
    return "\n".join(lines) + "\n"


_HEAD = ("| setting | type | default | purpose |", "|---|---|---|---|")


def _row(field: Field, name: str) -> str:
    kind = field.type.replace("|", "\\|")
    return f"| `{name}` | {kind} | `{field.default!r}` | {field.description} |"


def _purpose(section: str) -> str:
    """Return the purpose of a section, from its docstring."""
    doc = inspect.getdoc(type(getattr(Settings(), section)))
    assert doc is not None
    return " ".join(doc.split())


PAGES: dict[str, Callable[[], str]] = {
    "docs/commands.md": commands_page,
    "docs/metrics.md": metrics_page,
    "docs/settings.md": settings_page,
    "packaging/grafana/streamlearn.json": dashboard_json,
    **chart_pages(),
}
"""The function that generates each file."""

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(page())
