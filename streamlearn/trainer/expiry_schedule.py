"""Expiring: when keys are looked at that are to leave. Which do is the tables' to know."""

from __future__ import annotations

import logging

from streamlearn.ps import PsClient
from streamlearn.settings.tables import TableSettings
from streamlearn.table import Expiry
from streamlearn.trainer.intake.message import Reached

__all__ = ["Expiring"]

_LOG = logging.getLogger("streamlearn.trainer.Expiring")


class Expiring:
    """Lets keys leave, every so many steps: so that it depends on steps alone, and not on the wall's clock.

    Args:
        client: The tables.
        settings: Which keys leave.
    """

    def __init__(self, client: PsClient, settings: TableSettings) -> None:
        self._client, self._settings = client, settings
        expiry = Expiry(
            idle_ms=round(settings.idle_s * 1e3) if settings.idle_s else None,
            count_min=settings.rare_count,
            rare_idle_ms=round(settings.rare_idle_s * 1e3),
            keys_max=settings.keys_max or None,
        )
        is_asked = settings.idle_s or settings.rare_count or settings.keys_max
        self._expiries = dict.fromkeys(client.dims, expiry) if is_asked else {}

    def is_due(self, steps: int) -> bool:
        """Whether keys are to be looked at after so many steps."""
        return bool(self._expiries) and steps % self._settings.expire_steps == 0

    def look(self, steps: int, reached: Reached) -> None:
        """Look at some keys; nothing may be pushed meanwhile."""
        if reached.clock_ms is None:
            return
        budget = self._settings.expire_keys
        done = self._client.expire(self._expiries, now_ms=reached.clock_ms, budget_keys=budget)
        _LOG.debug("after step %d: %s", steps, done)
