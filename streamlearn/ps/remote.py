"""RemoteLink: shards in other processes, reached by the native client."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from streamlearn.errors import ShardRefused, StreamlearnError
from streamlearn.native import native
from streamlearn.ps.epoch import Epoch
from streamlearn.ps.orders import Answer, Failed, Order, decode_answer, encode
from streamlearn.ps.specification import difference, fingerprint_of
from streamlearn.settings import PsSettings
from streamlearn.table import Pushed, TableOptions

__all__ = ["RemoteLink", "Role"]

Role = Literal["trains", "reads", "asks"]

_LIMITS = (
    "connect_wait_ms_max",
    "reply_wait_ms_max",
    "retry_wait_ms_max",
    "backoff_first_ms",
    "backoff_ms_max",
    "calls_max",
    "pull_block_keys",
    "push_block_keys",
    "frame_bytes_max",
)


class RemoteLink:
    """The shards at some addresses.

    Args:
        model: The application's name.
        options: Of the tables; the shards' must be the same.
        settings: Addresses, TLS and limits.
        token: What shards are told to be let in; in no message.
        role: Whether it `trains`; or only `reads`, in whatever epoch the shards stand at; or only `asks` how shards
            are, and waits for none of them to be there.

    Raises:
        ShardUnreachable: A shard does not answer.
        ShardRefused: A shard is of another model, other tables or another release, or refuses the token.
    """

    def __init__(
        self,
        model: str,
        options: Sequence[TableOptions],
        settings: PsSettings,
        token: bytes | None = None,
        *,
        role: Role = "trains",
    ) -> None:
        self._options = tuple(options)
        self.dims = {one.spec.name: one.spec.dim for one in options}
        self.shards = len(settings.addresses)
        self._numbers = {name: number for number, name in enumerate(self.dims)}
        tls = (settings.tls_ca, settings.tls_server_name) if settings.tls_ca else None
        who = (
            list(settings.addresses),
            role,
            secrets.randbits(128),
            model,
            fingerprint_of(options),
            list(self.dims.values()),
            settings.encoding,
            secrets.randbits(64),
        )
        limits = [(name, getattr(settings, name)) for name in _LIMITS]
        limits.append(("in_flight_max", settings.in_flight_blocks_max))
        with self._named():
            self._client = native.PsClient(who, token, tls, limits)

    def begin(self, epoch: Epoch) -> None:
        """Calls belong to this epoch from here on; those of the one before fail."""
        self._client.set_epoch((epoch.run, epoch.recovery))

    def pull(self, table: str, keys: Any, at: int | None, is_distinct: bool, out: Any) -> None:
        """Ask the shards that have the keys."""
        with self._named():
            self._client.pull((self._numbers[table], self.dims[table]), keys, at, is_distinct, out.reshape(-1))

    def push(
        self, table: str, keys: Any, gradients: Any, rest: tuple[Any, Sequence[tuple[int, int]], int, float]
    ) -> Pushed:
        """Tell the shards that have the keys."""
        counts, admit, now_ms, rate_scale = rest
        number = self._numbers[table]
        with self._named():
            done = self._client.push(number, keys, gradients.reshape(-1), counts, list(admit), (now_ms, rate_scale))
        return Pushed(*done)

    def pack_flat(self, at: int | None, columns: Sequence[tuple[Any, ...]], shape: Any, out: Any) -> None:
        """Fetch distinct rows, and pack from those."""
        with self._named():
            native.pack_flat((self._client, len(self.dims), at), columns, shape, out)

    def pack_sequences(self, at: int | None, columns: Sequence[tuple[Any, ...]], shape: Any, out: Any) -> None:
        """Fetch distinct rows, and pack from those."""
        with self._named():
            native.pack_sequences((self._client, len(self.dims), at), columns, shape, out)

    def order_all(self, orders: Sequence[Order], wait_s: float) -> list[Answer | BaseException]:
        """Send each shard its order."""
        answers = self._client.order_all([encode(order) for order in orders], round(wait_s * 1e3))
        return [self._answer(one) for one in answers]

    def stats(self) -> list[dict[str, float]]:
        """Of each shard what was asked of it."""
        found: list[dict[str, float]] = self._client.stats()
        return found

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _answer(self, found: bytes | BaseException) -> Answer | BaseException:
        if isinstance(found, BaseException):
            return self._naming(found) if isinstance(found, ShardRefused) else found
        try:
            answer = decode_answer(found)
        except StreamlearnError as error:
            return error
        return answer.error() if isinstance(answer, Failed) else answer

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except ShardRefused as error:
            raise self._naming(error) from None

    def _naming(self, error: ShardRefused) -> ShardRefused:
        """The refusal of other tables, saying in what they differ; any other as it is."""
        differs = difference(self._options, getattr(error, "detail", b""))
        if not differs:
            return error
        message = f"{error.message.partition(': ')[0]}: wrong_tables: {differs}"
        return ShardRefused(message, help="give the trainer and the shards the same features and the same app.toml")
