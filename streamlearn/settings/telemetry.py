"""Settings of logs and metrics."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["TelemetrySettings"]


class TelemetrySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Logs and metrics."""

    log_format: Literal["human", "json"] = "human"
    """Format of log lines. `json` writes one object per line, for log collectors."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""
    listen: str = ""
    """Address of Prometheus metrics, HOST:PORT; empty serves none. `streamlearn up` takes this port itself and gives
    its processes the following ones; if empty, it picks free ports on loopback. A host other than loopback needs
    `telemetry.token_file`."""
    token_file: str = ""
    """File with the token that Prometheus has to send, as `authorization: Bearer TOKEN`. Empty asks for none."""
