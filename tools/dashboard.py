"""The Grafana dashboard: declares its panels, and generates the file from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ROWS", "Panel", "Row", "dashboard_json"]

_WIDTH, _PANELS_A_LINE, _HEIGHT = 24, 3, 8
# Every query selects an application by this label, which the scrape configuration sets for each target.
_APP = 'app=~"$app"'


@dataclass(frozen=True)
class Panel:
    """One chart.

    Args:
        title: The title.
        unit: Grafana's name of the unit: `s`, `short`, `percentunit`, `bytes`, `ops`.
        queries: Legend and PromQL of each line. `{}` in PromQL becomes the application's label.
        note: A hint for the reader.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    note: str = ""


@dataclass(frozen=True)
class Row:
    """Panels of one part of the loop."""

    title: str
    panels: tuple[Panel, ...]


def _p(quantile: float, histogram: str, by: str = "instance") -> str:
    return f"histogram_quantile({quantile}, sum by (le, {by}) (rate({histogram}_bucket{{}}[$__rate_interval])))"


def _rate(counter: str, by: str, matchers: str = "") -> str:
    return f"sum by ({by}) (rate({counter}{{{matchers}}}[$__rate_interval]))"


LOOP = Row(
    "The loop",
    (
        Panel(
            "Age of the events behind answers",
            "s",
            (
                ("p50 {{instance}}", _p(0.5, "streamlearn_serving_freshness_seconds")),
                ("p99 {{instance}}", _p(0.99, "streamlearn_serving_freshness_seconds")),
            ),
            "By node. With a version a minute, expect one minute plus the time to make a version.",
        ),
        Panel(
            "Newest committed version, and active version by node",
            "short",
            (
                ("committed", "streamlearn_publisher_committed_version{}"),
                ("active {{instance}}", "streamlearn_serving_active_version{}"),
            ),
            "Lines that diverge: a hold, a rejection, a canary, or a node that cannot follow.",
        ),
        Panel(
            "Processes that answer Prometheus",
            "short",
            (("{{process}} {{instance}}", 'up{job="streamlearn"}'),),
            "0: the process does not answer.",
        ),
    ),
)
INGEST = Row(
    "Ingest",
    (
        Panel(
            "Delay of samples: due until acknowledged",
            "s",
            tuple((f"p{of * 100:g}", _p(of, "streamlearn_ingest_emit_latency_seconds")) for of in (0.5, 0.99)),
        ),
        Panel(
            "Records read and samples written",
            "ops",
            (
                ("read {{partition}}", _rate("streamlearn_ingest_records_total", "partition")),
                ("appended {{topic}}", _rate("streamlearn_topics_records_appended_total", "topic")),
            ),
        ),
        Panel(
            "Time since a partition's watermark advanced",
            "s",
            (("partition {{partition}}", "streamlearn_ingest_watermark_still_seconds{}"),),
        ),
        Panel(
            "Impressions with open windows",
            "short",
            (("{{instance}}", "streamlearn_ingest_pending_requests{}"),),
        ),
        Panel(
            "Use of limits",
            "percentunit",
            (
                ("fullest join {{instance}}", "streamlearn_ingest_pending_ratio{}"),
                ("read ahead {{partition}}", "streamlearn_ingest_read_ahead_ratio{}"),
                ("read back {{instance}}", "streamlearn_ingest_read_back_ratio{}"),
            ),
            "At 1, events or reading wait.",
        ),
        Panel(
            "Dead letters by reason",
            "ops",
            (("{{reason}}", _rate("streamlearn_ingest_dead_letters_total", "reason")),),
        ),
    ),
)
TRAINER = Row(
    "Trainer",
    (
        Panel(
            "Rows by outcome",
            "ops",
            (("{{outcome}}", _rate("streamlearn_trainer_rows_total", "outcome")),),
        ),
        Panel(
            "Delay of rows: due until learned",
            "s",
            tuple((f"p{of * 100:g}", _p(of, "streamlearn_trainer_freshness_seconds")) for of in (0.5, 0.99)),
            "The oldest row of each step.",
        ),
        Panel(
            "Consumer lag, in records",
            "short",
            (
                ("samples {{partition}}", "streamlearn_trainer_behind_records{}"),
                ("{{topic}} {{partition}}", "streamlearn_ingest_behind_records{}"),
            ),
        ),
        Panel(
            "Busy share of each stage",
            "percentunit",
            (("{{stage}}", _rate("streamlearn_trainer_stage_seconds_total", "stage")),),
            "The stage near 1 limits throughput. Reading includes waiting for samples.",
        ),
        Panel(
            "First predictions: AUC",
            "percentunit",
            (("{{label}}", "streamlearn_trainer_validation_auc_ratio{}"),),
        ),
        Panel(
            "First predictions: calibration",
            "short",
            (("{{label}}", "streamlearn_trainer_validation_calibration_ratio{}"),),
            "Sum of predictions over positives: 1 is right.",
        ),
        Panel(
            "Use of limits: marks and held predictions",
            "percentunit",
            (
                ("marks", "streamlearn_trainer_marks_ratio{}"),
                ("predictions", "streamlearn_trainer_validation_held_ratio{}"),
            ),
        ),
        Panel(
            "Recoveries and rewinds",
            "short",
            (
                ("recoveries", "increase(streamlearn_trainer_recoveries_total{}[$__rate_interval])"),
                ("rewinds", "increase(streamlearn_trainer_rewinds_total{}[$__rate_interval])"),
            ),
        ),
        Panel(
            "Processes that learn slices",
            "short",
            (("{{instance}}", "streamlearn_trainer_workers_processes{}"),),
            "Workers, and the trainer if it learns too. Without slices there is no line.",
        ),
        Panel(
            "Time that a worker works on a slice",
            "s",
            tuple((f"p{of * 100:g}", _p(of, "streamlearn_trainer_slice_seconds")) for of in (0.5, 0.99)),
            "A slow worker gets fewer slices of each step.",
        ),
    ),
)
PUBLISHER = Row(
    "Versions",
    (
        Panel(
            "Versions by outcome",
            "short",
            (("{{outcome}}", "sum by (outcome) (increase(streamlearn_publisher_versions_total{}[10m]))"),),
            "In ten minutes. After a rejection, nodes keep the active version.",
        ),
        Panel(
            "Time since the last committed version",
            "s",
            (("{{instance}}", "streamlearn_publisher_since_committed_seconds{}"),),
        ),
        Panel(
            "Time to make a version, by stage",
            "s",
            (("p99 {{stage}}", _p(0.99, "streamlearn_publisher_stage_seconds", "stage")),),
        ),
        Panel(
            "Ticks skipped, failed, or without changes",
            "ops",
            (
                ("skipped", _rate("streamlearn_publisher_skipped_ticks_total", "instance")),
                ("failed", _rate("streamlearn_publisher_failures_total", "instance")),
                ("empty", _rate("streamlearn_publisher_empty_ticks_total", "instance")),
            ),
        ),
        Panel("Size of the newest version", "bytes", (("{{instance}}", "streamlearn_publisher_written_bytes{}"),)),
        Panel(
            "Time since the registry was last updated",
            "s",
            (("{{model}}", "streamlearn_publisher_registry_behind_seconds{}"),),
        ),
    ),
)
SERVING = Row(
    "Serving",
    (
        Panel(
            "Requests by status of the answer",
            "ops",
            (("{{status}}", _rate("streamlearn_serving_answers_total", "status", 'kind="score"')),),
        ),
        Panel(
            "Time to wait for a lane, and to decode",
            "s",
            (
                ("p50 wait", _p(0.5, "streamlearn_serving_wait_seconds", "app")),
                ("p99 wait", _p(0.99, "streamlearn_serving_wait_seconds", "app")),
                ("p99 decode", _p(0.99, "streamlearn_serving_decode_seconds", "app")),
            ),
            "Latency for callers also includes execution and network: measure it with `streamlearn bench-serve`.",
        ),
        Panel(
            "Refused requests by reason",
            "ops",
            (("{{reason}}", _rate("streamlearn_serving_refused_requests_total", "reason")),),
        ),
        Panel(
            "Predicted time to finish the queue",
            "s",
            (("{{instance}}", "streamlearn_serving_backlog_seconds{}"),),
        ),
        Panel(
            "Use of limits",
            "percentunit",
            (
                ("waiting {{instance}}", "streamlearn_serving_waiting_ratio{}"),
                ("under way {{instance}}", "streamlearn_serving_under_way_ratio{}"),
                ("connections {{instance}}", "streamlearn_serving_connections_ratio{}"),
                ("lanes busy {{instance}}", "streamlearn_serving_lanes_busy_ratio{}"),
                ("lanes rest {{instance}}", "streamlearn_serving_lanes_rest_ratio{}"),
            ),
        ),
        Panel(
            "Time since a node fell behind the pointer",
            "s",
            (("{{instance}}", "streamlearn_serving_behind_seconds{}"),),
        ),
        Panel(
            "Executables compiled, executions of shapes without one",
            "ops",
            (
                ("compiled {{instance}}", _rate("streamlearn_serving_compiles_total", "instance")),
                ("fallback {{graph}}", _rate("streamlearn_serving_fallbacks_total", "graph")),
            ),
            "Both stay flat once the ladder fits the traffic.",
        ),
        Panel(
            "Candidates of a TensorBatch, share of padding",
            "short",
            (
                ("p50 candidates", _p(0.5, "streamlearn_serving_tensor_batch_rows", "app")),
                (
                    "padding {{graph}}",
                    _rate("streamlearn_serving_padding_rows_total", "graph")
                    + " / "
                    + _rate("streamlearn_serving_rows_total", "graph"),
                ),
            ),
        ),
        Panel(
            "Lane failures and retries",
            "ops",
            (
                ("lane failures", _rate("streamlearn_serving_lane_failures_total", "instance")),
                ("lane retries", _rate("streamlearn_serving_lane_retries_total", "instance")),
                ("tried alone", _rate("streamlearn_serving_tried_again_requests_total", "instance")),
            ),
        ),
        Panel(
            "Impressions written and lost",
            "ops",
            (
                ("written {{instance}}", _rate("streamlearn_serving_impressions_written_total", "instance")),
                ("lost: {{reason}}", _rate("streamlearn_serving_impressions_lost_total", "reason")),
            ),
        ),
        Panel(
            "Version in shadow: difference of probabilities",
            "short",
            (
                ("mean {{output}}", "streamlearn_serving_shadow_difference_ratio{}"),
                ("largest {{output}}", "streamlearn_serving_shadow_difference_max_ratio{}"),
            ),
        ),
        Panel(
            "Version defects, rebuilt tables",
            "short",
            (
                ("{{defect}}", "sum by (defect) (increase(streamlearn_serving_defects_total{}[10m]))"),
                ("rebuilt {{instance}}", "increase(streamlearn_serving_rebuilds_total{}[10m])"),
            ),
        ),
    ),
)
PS = Row(
    "Parameter server",
    (
        Panel(
            "Rows by verb",
            "ops",
            (("{{verb}} {{instance}}", _rate("streamlearn_ps_rows_total", "verb, instance")),),
        ),
        Panel(
            "Busy time of shards, by verb",
            "percentunit",
            (("{{verb}} {{instance}}", _rate("streamlearn_ps_answering_seconds_total", "verb, instance")),),
            "Seconds per second; a shard has `ps.threads` of them.",
        ),
        Panel("Memory by table", "bytes", (("{{table}} {{instance}}", "streamlearn_ps_table_bytes{}"),)),
        Panel("Rows by table", "short", (("{{table}} {{instance}}", "streamlearn_ps_table_rows{}"),)),
        Panel(
            "Use of limits",
            "percentunit",
            tuple(
                (f"{noun} {{{{instance}}}}", f"{name}_{unit}{{}} / {name}_max_{unit}{{}}")
                for noun, name, unit in (
                    ("bytes in flight", "streamlearn_ps_in_flight", "bytes"),
                    ("connections", "streamlearn_ps_connections", "requests"),
                    ("orders", "streamlearn_ps_orders", "requests"),
                    ("clients", "streamlearn_ps_clients", "requests"),
                )
            ),
        ),
        Panel(
            "Errors and refusals",
            "ops",
            (
                ("errors {{verb}}", _rate("streamlearn_ps_errors_total", "verb")),
                ("refused {{code}}", _rate("streamlearn_ps_refused_requests_total", "code")),
            ),
        ),
    ),
)
ROWS = (LOOP, INGEST, TRAINER, PUBLISHER, SERVING, PS)


def dashboard_json() -> str:
    """Return the text of packaging/grafana/streamlearn.json."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        panels.append(
            {
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": top},
            }
        )
        panels += _charts(row.panels, top + 1)
        top += 1 + _HEIGHT * -(-len(row.panels) // _PANELS_A_LINE)
    for number, panel in enumerate(panels, start=1):
        panel["id"] = number
    return json.dumps(_document(panels), indent=2) + "\n"


def _charts(panels: Sequence[Panel], top: int) -> list[dict[str, Any]]:
    width = _WIDTH // _PANELS_A_LINE
    return [
        _chart(panel)
        | {
            "gridPos": {
                "h": _HEIGHT,
                "w": width,
                "x": at % _PANELS_A_LINE * width,
                "y": top + at // _PANELS_A_LINE * _HEIGHT,
            }
        }
        for at, panel in enumerate(panels)
    ]


def _chart(panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.note,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": source, "expr": _for_app(query), "legendFormat": legend}
            for at, (legend, query) in enumerate(panel.queries)
        ],
    }


def _for_app(query: str) -> str:
    """Add the label of the selected applications to every selector in braces."""
    parts = query.split("{")
    selected = [parts[0]]
    for part in parts[1:]:
        own = part.partition("}")[0]
        selected.append(part if _APP in own else f"{_APP}{', ' if own else ''}{part}")
    return "{".join(selected)


def _document(panels: list[dict[str, Any]]) -> dict[str, Any]:
    choice = {"multi": True, "includeAll": True, "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}}
    return {
        "title": "streamlearn",
        "uid": "streamlearn",
        "tags": ["streamlearn"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "utc",
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                {
                    "name": "app",
                    "label": "Application",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": "${source}"},
                    "query": {"query": 'label_values(up{job="streamlearn"}, app)', "refId": "app"},
                    "refresh": 2,
                    **choice,
                },
            ]
        },
        "panels": panels,
    }
