"""Survey: queries of the state of shards, including shards that do not answer. It reads no rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from streamlearn.access.renewal import GivenToken
from streamlearn.errors import ShardUnreachable, StreamlearnError
from streamlearn.ps.orders import ShardStats, Stats
from streamlearn.ps.place import Place
from streamlearn.ps.remote import RemoteLink
from streamlearn.settings import PsSettings
from streamlearn.table import TableOptions

__all__ = ["Door", "ShardState", "survey"]

_LOG = logging.getLogger("streamlearn.ps")


class ShardState(Struct, frozen=True):
    """The state of one shard, or the error that kept it from answering."""

    address: str
    stats: ShardStats | None
    error: StreamlearnError | None


def survey(
    model: str, options: Sequence[TableOptions], settings: PsSettings, token: GivenToken | None = None
) -> list[ShardState]:
    """Query the state of every shard, waiting up to `order_wait_s_max` for all answers together.

    Returns the shards in the order of the settings' addresses; a shard that is silent or refuses has an error.
    """
    link = RemoteLink(model, options, settings, token, role="asks")
    try:
        answers = link.order_all([Stats()] * link.shards, settings.order_wait_s_max)
    finally:
        link.close()
    return [_surveyed(address, answer) for address, answer in zip(settings.addresses, answers, strict=True)]


def _surveyed(address: str, answer: object) -> ShardState:
    match answer:
        case ShardStats():
            return ShardState(address, answer, None)
        case StreamlearnError():
            return ShardState(address, None, answer)
        case BaseException():
            raise answer
    message = f"{address} answered {type(answer).__name__} to a query of its state"
    return ShardState(address, None, ShardUnreachable(message, help="check which process listens there"))


class Door:
    """A connection of a shard's process to its own address, reopened after a failure.

    The settings hold the CA that verifies the shard's certificate, and limits.
    """

    def __init__(
        self,
        address: str,
        place: Place,
        model: str,
        options: Sequence[TableOptions],
        settings: PsSettings,
        *,
        token: GivenToken | None = None,
    ) -> None:
        self._number, self._model, self._options, self._token = place.number, model, options, token
        # A client connects to every shard; all positions get this address, and only this shard's answer is used.
        self._settings = msgspec.structs.replace(settings, addresses=[address] * place.count)
        self._link: RemoteLink | None = None

    def answers(self, wait_s: float) -> bool:
        """Whether the shard reports its state in time, which exercises its server, its order thread and the shard."""
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
        """Close the connection."""
        if self._link is not None:
            self._link.close()
            self._link = None
