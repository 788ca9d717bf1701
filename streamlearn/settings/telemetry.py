"""Settings of logs and metrics."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

__all__ = ["TelemetrySettings"]


class TelemetrySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Logs and metrics."""

    log_format: Annotated[
        Literal["human", "json"],
        Meta(description="Format of log lines. `json` writes one object per line, for log collectors."),
    ] = "human"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The lowest level that is logged.")
    ] = "info"
    metrics_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65_535,
            description="Port of Prometheus metrics on loopback; 0 turns them off. `streamlearn up` takes this port "
            "itself and gives its processes the following ones; with 0 it picks free ports.",
        ),
    ] = 0
