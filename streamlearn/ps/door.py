"""Door: whether a shard answers, asked where everybody asks it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from streamlearn.errors import StreamlearnError
from streamlearn.ps.orders import ShardStats, Stats
from streamlearn.ps.place import Place
from streamlearn.ps.remote import RemoteLink
from streamlearn.settings import PsSettings
from streamlearn.table import TableOptions

__all__ = ["Door"]

_LOG = logging.getLogger("streamlearn.ps")


class Door:
    """A connection of a shard's process to itself, made anew when it fails.

    Args:
        address: Where the shard listens.
        place: Which shard it is.
        model: The application's name.
        options: Of the tables.
        settings: What the shard's certificate is looked at with, and limits.
        token: What callers must say.
    """

    def __init__(
        self,
        address: str,
        place: Place,
        model: str,
        options: Sequence[TableOptions],
        settings: PsSettings,
        *,
        token: bytes | None = None,
    ) -> None:
        self._number, self._model, self._options, self._token = place.number, model, options, token
        # A client asks as many shards as there are; at the places of the others it says that this is not the one.
        self._settings = msgspec.structs.replace(settings, addresses=[address] * place.count)
        self._link: RemoteLink | None = None

    def answers(self, wait_s: float) -> bool:
        """Whether the shard says how it is: its server, whoever takes orders, and the shard are at work then."""
        answer: object
        try:
            if self._link is None:
                self._link = RemoteLink(self._model, self._options, self._settings, self._token, role="asks")
            answer = self._link.order_all([Stats()] * self._link.shards, wait_s)[self._number]
        except StreamlearnError as error:
            answer = error
        if isinstance(answer, ShardStats):
            return True
        self.close()
        _LOG.warning("this shard does not answer its own health check: %s", answer)
        return False

    def close(self) -> None:
        """Let go of the connection."""
        if self._link is not None:
            self._link.close()
            self._link = None
