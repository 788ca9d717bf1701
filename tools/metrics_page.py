"""The page of all metrics, generated from their declarations in the code."""

from __future__ import annotations

from tools.declared_metrics import DeclaredMetric, declared_metrics

__all__ = ["HEAD", "PROCESSES", "metrics_page"]

# The process that exports the metrics of a component, in the order of the loop.
PROCESSES = {
    "events": "every process with a Producer",
    "topics": "every process that reads or writes topics",
    "ingest": "`streamlearn ingest`",
    "fold": "`streamlearn features fold`",
    "trainer": "`streamlearn train`",
    "publisher": "`streamlearn train`, where the publisher is a thread",
    "ps": "`streamlearn ps`, each shard",
    "serving": "`streamlearn serve`, each node",
    "retrieval": "`streamlearn serve`, each node of an application with retrieval",
    "nearline": "`streamlearn nearline`",
    "supervision": "`streamlearn up`",
    "console": "`streamlearn console`",
    "access": "every process with a token or a certificate in a file",
}
HEAD = """# Metrics

Every metric of every process, by component. A process serves its own at `/metrics` of the address
`telemetry.listen`; empty, the default, serves none. A node has them at its HTTP address as well. Under
[`streamlearn up`](operating/up.md) each process has a port of its own.

A name is `streamlearn_COMPONENT_NOUN_UNIT`. A counter ends in `_total` and only grows, until its process ends; a gauge
moves both ways; a histogram `NAME` is stored as `NAME_bucket`, `NAME_sum` and `NAME_count`. A `ratio` says how near
something is to its bound, or what share it is; 1 is all of it. A metric with labels is there once there is something
to count.

A dashboard and alerts made of them are on [Watch it](operating/watching.md).

<!-- written by python -m tools.write_docs -->
"""


def metrics_page() -> str:
    """Return the text of docs/metrics.md."""
    metrics, lines = declared_metrics(), [HEAD.rstrip("\n")]
    for component, process in PROCESSES.items():
        lines += [
            "",
            f"## {component}",
            "",
            f"Of {process}.",
            "",
            "| metric | type | unit | labels | what it is |",
            "|---|---|---|---|---|",
            *(_row(metric) for metric in metrics if metric.component == component),
        ]
    return "\n".join(lines) + "\n"


def _row(metric: DeclaredMetric) -> str:
    unit = "" if metric.unit == "total" else metric.unit
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {unit} | {labels} | {metric.help.rstrip('.')} |"
