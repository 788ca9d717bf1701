"""Settings of logs and metrics."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

__all__ = ["TelemetrySettings"]


class TelemetrySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Logs and metrics."""

    log_format: Annotated[
        Literal["human", "json"], Meta(description="`json` writes one object a line, for collectors.")
    ] = "human"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least level that is written.")
    ] = "info"
    metrics_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65_535,
            description="Prometheus metrics on this loopback port. 0 serves none. `streamlearn up` itself takes this "
            "one and gives its processes the ports after it; with 0 it takes free ones.",
        ),
    ] = 0
