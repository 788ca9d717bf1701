"""ExpirySchedule: when the tables look for keys to expire. The tables decide which keys expire."""

from __future__ import annotations

import logging

from streamlearn.ps import PsClient
from streamlearn.settings.tables import TableSettings
from streamlearn.table import Expiry
from streamlearn.trainer.intake.message import Reached

__all__ = ["ExpirySchedule"]

_LOG = logging.getLogger("streamlearn.trainer.ExpirySchedule")


class ExpirySchedule:
    """Expires keys every `tables.expire_steps` steps, so that expiry depends on steps alone and not on wall time."""

    def __init__(self, client: PsClient, settings: TableSettings) -> None:
        self._client, self._settings = client, settings
        expiry = Expiry(
            idle_ms=round(settings.idle_s * 1e3) if settings.idle_s else None,
            count_min=settings.rare_count,
            rare_idle_ms=round(settings.rare_idle_s * 1e3),
            keys_max=settings.keys_max or None,
        )
        is_enabled = settings.idle_s or settings.rare_count or settings.keys_max
        self._expiries = dict.fromkeys(client.dims, expiry) if is_enabled else {}

    def is_due(self, steps: int) -> bool:
        """Whether keys are checked for expiry after this step."""
        return bool(self._expiries) and steps % self._settings.expire_steps == 0

    def look(self, steps: int, reached: Reached) -> None:
        """Check some keys for expiry. Nothing may be pushed at the same time."""
        if reached.clock_ms is None:
            return
        expired = self._client.expire(self._expiries, now_ms=reached.clock_ms, budget_keys=self._settings.expire_keys)
        _LOG.debug("after step %d: %s", steps, expired)
