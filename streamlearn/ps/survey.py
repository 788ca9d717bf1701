"""Survey: how each shard is, asked of those that are there. It reads no rows, and no shard waits for another."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from streamlearn.errors import ShardUnreachable, StreamlearnError
from streamlearn.ps.orders import ShardStats, Stats
from streamlearn.ps.remote import RemoteLink
from streamlearn.settings import PsSettings
from streamlearn.table import TableOptions

__all__ = ["Surveyed", "survey"]


class Surveyed(Struct, frozen=True):
    """What is known of one shard.

    Attributes:
        address: Where it was asked.
        stats: What it said of itself.
        error: Why it said nothing.
    """

    address: str
    stats: ShardStats | None
    error: StreamlearnError | None


def survey(
    model: str, options: Sequence[TableOptions], settings: PsSettings, token: bytes | None = None
) -> list[Surveyed]:
    """Ask every shard how it is; one that is silent, or that refuses, is named beside those that answer.

    Args:
        model: The application's name.
        options: Of the tables, as the shards have them.
        settings: Addresses and TLS; `order_wait_s_max` is how long an answer is waited for.
        token: What shards are told to be let in.

    Returns:
        Of each shard, in the order of the addresses.
    """
    link = RemoteLink(model, options, settings, token, role="asks")
    try:
        answers = link.order_all([Stats()] * link.shards, settings.order_wait_s_max)
    finally:
        link.close()
    return [_surveyed(address, answer) for address, answer in zip(settings.addresses, answers, strict=True)]


def _surveyed(address: str, answer: object) -> Surveyed:
    match answer:
        case ShardStats():
            return Surveyed(address, answer, None)
        case StreamlearnError():
            return Surveyed(address, None, answer)
        case BaseException():
            raise answer
    message = f"{address} answered {type(answer).__name__} to a query of its state"
    return Surveyed(address, None, ShardUnreachable(message, help="check which process listens there"))
