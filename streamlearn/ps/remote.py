"""RemoteLink: shards in other processes, reached by the native client."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import msgspec

from streamlearn.access.renewal import GivenToken
from streamlearn.errors import ShardRefused, StreamlearnError
from streamlearn.native import native
from streamlearn.ps.orders import Answer, Epoch, Failed, Order, decode_answer
from streamlearn.ps.slice_part import NativePart
from streamlearn.ps.specification import difference, fingerprint_of
from streamlearn.settings import PsSettings
from streamlearn.table import Pushed, TableOptions
from streamlearn.table.source import ColumnArrays, PackShape
from streamlearn.table.table import PushOptions

__all__ = ["ClientIdentity", "RemoteLink", "Role", "client_limits"]

Role = Literal["trains", "reads", "asks"]

_LIMITS = (
    "connect_wait_ms_max", "reply_wait_ms_max", "retry_wait_ms_max", "backoff_first_ms", "backoff_ms_max", "calls_max",
    "pull_block_keys", "push_block_keys", "frame_bytes_max",
)  # fmt: skip


def client_limits(settings: PsSettings) -> list[tuple[str, int]]:
    """The limits of a native client."""
    return [*((name, getattr(settings, name)) for name in _LIMITS), ("in_flight_max", settings.in_flight_blocks_max)]


class ClientIdentity(NamedTuple):
    """The client that connects, and the tables that it expects."""

    addresses: list[str]  # of the shards, by their number
    role: Role
    client: int  # a random number of 128 bits: shards count its pushes under it
    model: str
    fingerprint: bytes
    dims: list[int]  # the length of a row of each table, by its number
    encoding: str
    seed: int  # of the jitter between attempts to connect


class RemoteLink:
    """The shards at the settings' addresses.

    The options must be those of the shards. The token never appears in a message. The role is `trains`; or `reads`,
    to read in whatever epoch the shards are; or `asks`, to query the state of shards without waiting for absent ones.

    Raises:
        ShardUnreachable: A shard does not answer.
        ShardRefused: A shard has another model, other tables or another release, or refuses the token.
    """

    def __init__(
        self,
        model: str,
        options: Sequence[TableOptions],
        settings: PsSettings,
        token: GivenToken | None = None,
        *,
        role: Role = "trains",
    ) -> None:
        self._options = tuple(options)
        self.dims = {table.spec.name: table.spec.dim for table in options}
        self.shards = len(settings.addresses)
        self._numbers = {name: number for number, name in enumerate(self.dims)}
        tls = (settings.tls_ca, settings.tls_server_name) if settings.tls_ca else None
        self._identity = ClientIdentity(
            list(settings.addresses), role, secrets.randbits(128), model, fingerprint_of(options),
            list(self.dims.values()), settings.encoding, secrets.randbits(64),
        )  # fmt: skip
        with self._explained():
            self._client = native.PsClient(self._identity, token, tls, client_limits(settings))

    @property
    def client(self) -> int:
        """The number under which shards know this client."""
        return self._identity.client

    def begin(self, epoch: Epoch) -> None:
        """Send all further calls in this epoch; calls of the previous one fail."""
        self._client.set_epoch((epoch.run, epoch.recovery))

    def pull(self, table: str, keys: Any, at: int | None, is_distinct: bool, out: Any) -> None:
        """Read rows into `out` from the shards that own the keys; None reads the newest rows."""
        with self._explained():
            self._client.pull((self._numbers[table], self.dims[table]), keys, at, is_distinct, out.reshape(-1))

    def push(self, table: str, keys: Any, gradients: Any, options: PushOptions) -> Pushed:
        """Apply gradients once, at the shards that own the keys."""
        with self._explained():
            pushed = self._client.push(self._numbers[table], keys, gradients.reshape(-1), options)
        return Pushed(*pushed)

    def push_part(self, part: NativePart, table: str, keys: Any, gradients: Any, options: PushOptions) -> Pushed:
        """Give one slice's gradients of a step once, to the shards that own the keys."""
        with self._explained():
            pushed = self._client.push(self._numbers[table], keys, gradients.reshape(-1), options, part)
        return Pushed(*pushed)

    def reduce(self, part: NativePart, values: Any, digest: int) -> None:
        """Give one slice's values of a dense vector to the shards, a range to each."""
        with self._explained():
            self._client.reduce(part, values, digest)

    def reduced(self, step: int, slices: int, out: Any, wait_ms: int) -> bool | None:
        """Ask for the sum over the slices of a step; None while slices are missing, else whether all were finite."""
        with self._explained():
            return self._client.reduced(step, slices, out, wait_ms)

    def pack_flat(self, at: int | None, columns: Sequence[ColumnArrays], shape: PackShape, out: Any) -> None:
        """Fetch the distinct rows and pack them."""
        with self._explained():
            native.pack_flat((self._client, len(self.dims), at), columns, shape, out)

    def pack_sequences(self, at: int | None, columns: Sequence[ColumnArrays], shape: PackShape, out: Any) -> None:
        """Fetch the distinct rows and pack them."""
        with self._explained():
            native.pack_sequences((self._client, len(self.dims), at), columns, shape, out)

    def order_all(self, orders: Sequence[Order], wait_s: float) -> list[Answer | BaseException]:
        """Send order i to shard i, all at once; returns each shard's answer or error."""
        answers = self._client.order_all([msgspec.json.encode(order) for order in orders], round(wait_s * 1e3))
        return [self._decoded(answer) for answer in answers]

    def stats(self) -> list[dict[str, float]]:
        """The counts of calls to each shard."""
        stats: list[dict[str, float]] = self._client.stats()
        return stats

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _decoded(self, data: bytes | BaseException) -> Answer | BaseException:
        if isinstance(data, BaseException):
            return self._with_difference(data) if isinstance(data, ShardRefused) else data
        try:
            answer = decode_answer(data)
        except StreamlearnError as error:
            return error
        return answer.error() if isinstance(answer, Failed) else answer

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ShardRefused as error:
            raise self._with_difference(error) from None

    def _with_difference(self, error: ShardRefused) -> ShardRefused:
        """Add the first difference to a refusal of other tables; any other error stays as it is."""
        differs = difference(self._options, getattr(error, "detail", b""))
        if not differs:
            return error
        message = f"{error.message.partition(': ')[0]}: wrong_tables: {differs}"
        return ShardRefused(message, help="give the trainer and the shards the same features and the same app.toml")
