"""Settings of logs and metrics."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

__all__ = ["TelemetrySettings"]


class TelemetrySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Logs and metrics."""

    log_format: Literal["human", "json"] = "human"
    """Format of log lines. `json` writes one object per line, for log collectors."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""
    metrics_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """Port of Prometheus metrics on loopback; 0 turns them off. `streamlearn up` takes this port itself and gives its
    processes the following ones; with 0 it picks free ports."""
