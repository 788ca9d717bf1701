"""The compiled core. Private: import it through `streamlearn.native`, which checks its version.

Every array argument must be an aligned, C-contiguous, one-dimensional NumPy array of the stated type; lists are not
accepted. Anything else raises a `TypeError` that names the argument and the expected and actual types. Nothing is
copied or converted implicitly. The GIL is released during the work; do not write to an array meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.ingest.join.plan import JoinRules
from streamlearn.load.load_run import LoadLimits, LoadPlan
from streamlearn.online.redis_address import RedisAddress
from streamlearn.ps.remote import ClientIdentity
from streamlearn.ps.server import ShardIdentity
from streamlearn.ps.slice_part import NativePart
from streamlearn.serving.front import FrontLimits
from streamlearn.serving.node import NodeLimits
from streamlearn.serving.node_features import ReadLimits
from streamlearn.table.options import Expiry, TableOptions
from streamlearn.table.source import ColumnArrays, PackShape
from streamlearn.table.table import PushOptions, RowArrays

_U8: TypeAlias = npt.NDArray[np.uint8]
_I64: TypeAlias = npt.NDArray[np.int64]
_U64: TypeAlias = npt.NDArray[np.uint64]
_Offsets: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]
_Bytes: TypeAlias = bytes | bytearray | memoryview | _U8

__version__: str

# Keys.

def slot_salt(name: str) -> int:
    """The salt of a slot's keys: XXH3-64 of its name."""

def hash_ints(values: _I64, salt: int, out: _U64 | None = None) -> _U64:
    """Keys of integers: XXH3-64 of their 8 little-endian bytes, seeded by the salt.

    Args:
        values: One integer per key.
        salt: The slot's salt.
        out: The array to write the keys to, as long as `values`; a new array by default.

    Returns:
        `out`, or the new array.

    Raises:
        ValueError: `out` has another length, is read-only, or shares memory with `values`.
    """

def hash_strings(offsets: _Offsets, data: _U8, salt: int, out: _U64 | None = None) -> _U64:
    """Keys of strings: XXH3-64 of their UTF-8 bytes, seeded by the salt.

    Args:
        offsets: n + 1 offsets that cut `data` into n strings, as in Arrow.
        data: The bytes of all strings, end to end.
        salt: The slot's salt.
        out: The array to write the keys to, one per string; a new array by default.

    Returns:
        `out`, or the new array.

    Raises:
        ValueError: The offsets do not fit the data, or `out` cannot be written to, as in `hash_ints`.
    """

def cross_keys(first: _U64, second: _U64, salt: int) -> _U64:
    """Keys of pairs of keys: XXH3-64 of the 16 little-endian bytes of both, seeded by the salt.

    Raises:
        ValueError: They are not equally many.
    """

def count_keys(keys: _U64, index: _I32, offsets: _I32, lists: _U64) -> _F32:
    """How often each key is in the list of its index; `offsets` cut `lists` into lists.

    Raises:
        ValueError: The offsets do not fit, or an index has no list.
    """

def check_offsets(offsets: _Offsets, length: int) -> None:
    """Check that offsets start at 0, never decrease and end at `length`.

    Raises:
        ValueError: They do not; the error names the first bad index.
    """

# Partitions and spans.

def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key by Kafka's default partitioner (murmur2).

    Raises:
        ValueError: `partitions` is 0.
    """

def partitions_of(offsets: npt.NDArray[np.int32], data: _U8, partitions: int) -> npt.NDArray[np.int32]:
    """The partition of each key by Kafka's default partitioner (murmur2).

    Args:
        offsets: n + 1 offsets that cut `data` into n keys.
        data: The bytes of all keys, end to end.
        partitions: The number of partitions.

    Raises:
        ValueError: The offsets do not fit the data, or `partitions` is 0.
    """

def take_spans(data: _U8, offsets: _I64, rows: _I64) -> tuple[_U8, npt.NDArray[np.int32]]:
    """Gather the values of some rows, end to end, and the offsets that cut them.

    Args:
        data: The bytes of all rows, end to end.
        offsets: n + 1 offsets that cut `data` into n rows.
        rows: The rows to gather, in order.

    Raises:
        ValueError: The offsets do not fit the data, a row is out of range, or the result exceeds 2 GiB.
    """

# Checksums.

def crc32c(data: _Bytes, seed: int = 0) -> int:
    """CRC32C of contiguous bytes, continued from `seed`, the checksum of the preceding bytes."""

def schema_fingerprint(canonical: _Bytes) -> int:
    """CRC-64-AVRO of a schema in parsing canonical form: the fingerprint in Avro's single-object framing."""

# Avro.

class AvroPlan:
    """Converts records of one Avro schema to columns of another, and back.

    Each leaf of the reader's schema is a column named by its dotted path, without arrays. Further columns of a path
    have a suffix:

    - `path`: values. boolean is bool; int and enum indices are int32; long is int64; float float32; double float64.
      For string and bytes it is the data, uint8. Null has no column.
    - `path$`: int32 byte offsets of string and bytes, n + 1.
    - `path[]`: int32 offsets of an array's items, n + 1.
    - `path?`: uint8 validity of a nullable, 1 if a value is present. If it is absent, its columns hold 0 or empty,
      so that all stay aligned.

    Columns of values directly inside an array have the array's brackets before the suffix: for an array `x` of
    nullable floats, the items' validity is `x[]?`; for an array of arrays, the inner offsets are `x[][]`.

    The writer's schema may be any from which Avro's rules can resolve the reader's: promotion, aliases, defaults,
    skipped fields, enums by symbol. The reader's may have records, arrays, unions of null and one type, primitives
    and enums. Types nest at most 32 deep, and a plan has at most 10,000 nodes.

    Args:
        writer: The schema of the records, as JSON.
        reader: The schema of the columns, as JSON; the writer's by default.

    Raises:
        ValueError: A schema is invalid, cannot become columns, or cannot be resolved; the error names the path.
    """

    def __new__(cls, writer: str, reader: str | None = None) -> AvroPlan: ...
    @property
    def columns(self) -> list[tuple[str, str]]:
        """Name and dtype of each column, in the order of the schema."""

    def decode(
        self, buffer: _U8, starts: _I64, ends: _I64, *, items_max: int = 1_000_000
    ) -> tuple[dict[str, npt.NDArray[Any]], _I64, list[tuple[int, str]]]:
        """Decode records that lie in one buffer.

        A bad record leaves nothing in the columns and does not stop the decoding of later ones.

        Args:
            buffer: The bytes.
            starts: The start of each record.
            ends: The end of each record.
            items_max: Maximum items of one array, and of zero-byte items (such as nulls) in all arrays of a record.

        Returns:
            The columns; the index of each row's record; and the index and error of each bad record.

        Raises:
            ValueError: A span is outside of the buffer, or a column exceeds int32 offsets.
        """

    def decode_list(
        self, records: list[bytes], skip: int = 0, *, items_max: int = 1_000_000
    ) -> tuple[dict[str, npt.NDArray[Any]], _I64, list[tuple[int, str]]]:
        """Decode records given as one `bytes` each, without their first `skip` bytes (such as a 10-byte header).

        Returns:
            As for `decode`.

        Raises:
            TypeError: An item of the list is not `bytes`.
            ValueError: A column exceeds int32 offsets.
        """

    def encode(self, columns: Mapping[str, npt.NDArray[Any]], rows: int, prefix: _Bytes = b"") -> tuple[_U8, _I64]:
        """Write columns as records. The plan must have a single schema.

        Where validity is 0, null is written, whatever the columns below hold.

        Args:
            columns: Columns with the names and types of `columns`. A field without columns is written as its
                default.
            rows: The number of records.
            prefix: Bytes written before each record.

        Returns:
            The records end to end, and the rows + 1 offsets that cut them.

        Raises:
            TypeError: A column has another type; the error names it.
            ValueError: A column is missing without a default, unknown, of the wrong length for its rows or offsets,
                or has invalid values; the error names it. Or the plan has two schemas.
        """

# Frames of a file topic's log, record batches of Kafka.

_Parts: TypeAlias = Sequence[bytes | None]
_Columns: TypeAlias = tuple[_I64, _I64, list[bytes | None], list[bytes | None]]

def pack_frames(base_offset: int, timestamps_ms: _I64, keys: _Parts | None, values: _Parts) -> bytes: ...
def scan_frames(
    data: bytes, offset_min: int, records_max: int, bytes_max: int, frame_bytes_max: int
) -> tuple[_Columns, int, str]: ...
def index_frames(
    data: bytes, block_bytes: int, frame_bytes_max: int
) -> tuple[list[tuple[int, int, int]], int, int, str]: ...
def pack_kafka_batch(
    producer: tuple[int, int, int], timestamps_ms: _I64, keys: _Parts | None, values: _Parts
) -> bytes: ...

class _Decompress(Protocol):
    def __call__(self, codec: int, data: bytes, /) -> bytes: ...
    def charge(self, size: int, /) -> None: ...

def scan_kafka_batches(
    data: bytes, offset_min: int, aborted: list[tuple[int, int]], decompress: _Decompress
) -> tuple[_Columns, int, list[tuple[int, int]]]: ...

# Tables. `streamlearn.table` says what each call does; a table is named by its place in the set.

TABLE_PARTS: int

_F32: TypeAlias = npt.NDArray[np.float32]
_U32: TypeAlias = npt.NDArray[np.uint32]
_At: TypeAlias = TablePin | str
_Source: TypeAlias = tuple[TableSet, _At] | tuple[PsClient, int, int | None]

class TablePin:
    """A pinned version: it is not retired while this object lives."""

    version: int

class ExportedRows:
    """The changes of some parts of a table.

    Attributes:
        numbers: The rows as their type stores them.
        scales: The scales of int8 numbers, one a row.
        state: The optimizer's state.
        ticks: Last uses.
        counts: Counts of uses.
        gone: Removed keys.
    """

    keys: _U64
    numbers: _U8
    scales: _F32
    state: _F32
    ticks: _U32
    counts: _U8
    gone: _U64

class TableExport:
    """The changes between two versions; both are held while this object lives."""

    def read(self, table: int, begin: int, end: int) -> ExportedRows:
        """Read some parts."""

    def close(self) -> None:
        """Release both versions."""

class TableSet:
    """Tables with common versions."""

    retained: list[int]
    sealed: int | None
    active: int | None
    retiring: int

    def __init__(self, options: Sequence[TableOptions]) -> None: ...
    def lookup(self, table: int, keys: _U64, at: _At, out: _F32, threads: int) -> None:
        """Write the rows of keys into `out`, as of a version."""

    def push(self, table: int, keys: _U64, gradients: _F32, options: PushOptions, threads: int) -> tuple[int, int, int]:
        """Return how many keys learned, were created and wait."""

    def put(self, table: int, keys: _U64, rows: RowArrays, refuse_twice: bool, threads: int) -> None:
        """Write rows."""

    def remove(self, table: int, keys: _U64, refuse_twice: bool, threads: int) -> int:
        """Remove keys and return how many were present."""

    def expire(self, table: int, expiry: Expiry, now_ms: int, budget_keys: int) -> tuple[int, int, int, int]:
        """Return the fields of `Expired`."""

    def hands(self, table: int, begin: int, end: int) -> tuple[int, _U64]:
        """The part that expiry inspects next, and the position of its hand in some parts."""

    def set_hands(self, table: int, begin: int, next_part: int, hands: _U64) -> None:
        """Restore the positions of the hands."""

    def take_pages(self, table: int, begin: int, end: int, changed_only: bool) -> list[tuple[int, bytes]]:
        """The counts of keys without a row, by part."""

    def put_page(self, table: int, part: int, bytes: bytes) -> None:
        """Restore the counts of a part."""

    def clear_pages(self, table: int) -> None:
        """Drop all counts."""

    def seal(self, version: int) -> None:
        """Close the open version."""

    def commit(self, version: int) -> None:
        """Commit the sealed version."""

    def abandon(self, version: int) -> None:
        """Abandon the sealed version; its writes belong to the open version again."""

    def discard(self, threads: int) -> None:
        """Discard everything that is not committed."""

    def activate(self, version: int) -> None:
        """Make readers follow a version."""

    def retire(self, version: int, wait_ms_max: int, threads: int) -> int:
        """Retire a version; return the number of versions that wait for readers."""

    def sweep(self, wait_ms_max: int, threads: int) -> int:
        """Free retired versions whose readers have passed; return the number that still wait."""

    def begin_staging(self, parent: int | None) -> None:
        """Start to stage a version: no one else may write meanwhile. The parent must be the newest version."""

    def end_staging(self, version: int) -> None:
        """Seal and commit the staged version."""

    def drop_staging(self, threads: int) -> None:
        """Drop the rows staged so far."""

    def pin(self, version: int) -> TablePin:
        """Pin a version."""

    def changed(self, since: int | None, upto: int) -> TableExport:
        """The changes after version `since` up to version `upto`."""

    def size(self, table: int) -> dict[str, int]:
        """The contents of a table in numbers."""

def parts_of(keys: _U64) -> npt.NDArray[np.uint16]:
    """The part of each key; it never changes."""

def encode_rows(rows: _F32, dim: int, row_type: str) -> tuple[_U8, _F32]:
    """Encode rows as a row type stores them: numbers, and scales for int8."""

def pack_flat(source: _Source, columns: Sequence[ColumnArrays], shape: PackShape, out: _F32) -> None:
    """Pack a flat matrix.

    Args:
        source: `(set, at)` reads tables; `(client, tables, version)` fetches rows of that number of tables from
            shards.
        columns: The columns of the matrix.
        shape: Its shape.
        out: The matrix.
    """

def pack_sequences(source: _Source, columns: Sequence[ColumnArrays], shape: PackShape, out: _F32) -> None:
    """Pack a sequence block."""

class Scatter:
    """Sums of gradients by table and key."""

    bytes: int

    def __init__(self, dims: Sequence[int], keys_max: int) -> None: ...
    def clear(self) -> None:
        """Drop all sums."""

    def add_flat(self, columns: Sequence[ColumnArrays], shape: PackShape, gradients: _F32) -> None:
        """Add the gradients of a matrix from `pack_flat`."""

    def add_sequences(self, columns: Sequence[ColumnArrays], shape: PackShape, gradients: _F32) -> None:
        """Add the gradients of a block from `pack_sequences`."""

    def gradients(self, table: int) -> tuple[_U64, _F32, _U32]:
        """Distinct keys, their sums, and their numbers of occurrences."""

# The parameter server. `streamlearn.ps` says what each call does.

_Epoch: TypeAlias = tuple[int, int]
_Limits: TypeAlias = Sequence[tuple[str, int]]

class PsOrder:
    """An order that a client sent to a shard.

    Attributes:
        id: The number by which it is answered.
        reads_only: Whether the client only reads.
    """

    id: int
    reads_only: bool
    body: bytes

class Token:
    """The token in a file, without surrounding white space. A file that changes is read again.

    Args:
        path: The file.

    Raises:
        ValueError: The file cannot be read, or holds no token that a header can carry.
    """

    def __init__(self, path: Path) -> None: ...
    def matches(self, sent: bytes) -> bool:
        """Return whether these bytes are the token, or the one that its file held until five minutes ago."""

    def current(self) -> bytes:
        """Return the token to send."""

class PsServer:
    """The server of a shard.

    Args:
        listen: `host:port` or `unix:/path`.
        shard: The shard that it serves.
        token: The token that callers must send.
        tls: Paths of certificate and key.
        threads: The number of threads that answer.
        limits: Limits that override the defaults.
    """

    addresses: list[str]

    def __init__(
        self,
        listen: list[str],
        shard: ShardIdentity,
        token: bytes | Token | None,
        tls: tuple[str, str] | None,
        threads: int,
        limits: _Limits,
    ) -> None: ...
    def install(self, set: TableSet, epoch: _Epoch) -> None:
        """Serve these tables from now on, for this epoch."""

    def uninstall(self) -> None:
        """Release the tables once no request uses them."""

    def clients(self) -> list[int]:
        """The ids of the connected clients, in ascending order."""

    def next_order(self, wait_ms: int) -> PsOrder | None:
        """The next order; None if none arrived in time."""

    def refused(self, wait_ms: int) -> tuple[list[tuple[str, str]], int]:
        """Refused connections with reasons, and the number of those left out."""

    def answer(self, id: int, body: bytes) -> bool:
        """Answer an order; return whether the caller was still connected."""

    def refuse(self, id: int, code: str, text: str) -> bool:
        """Refuse an order."""

    def stats(self) -> dict[str, float]:
        """Statistics since the start."""

    def stop(self, drain_ms: int) -> None:
        """Finish the requests in progress, and close."""

class PsClient:
    """A client of all shards of a model.

    Args:
        identity: The client, and the tables that it expects.
        token: The token to send to the shards.
        tls: The path of the CA certificates, and the server name to verify.
        limits: Limits that override the defaults.
    """

    epoch: _Epoch | None

    def __init__(
        self,
        identity: ClientIdentity,
        token: bytes | Token | None,
        tls: tuple[str, str] | None,
        limits: _Limits,
    ) -> None: ...
    def set_epoch(self, epoch: _Epoch) -> None:
        """Start an epoch."""

    def shards(self) -> list[tuple[str, int, int, _Epoch | None]]:
        """Address, first part, end of the parts, and epoch of each shard."""

    def pull(self, table: tuple[int, int], keys: _U64, at: int | None, is_distinct: bool, out: _F32) -> None:
        """Write the rows of keys into `out`; `table` is the table's number and dim."""

    def push(
        self, table: int, keys: _U64, gradients: _F32, options: PushOptions, part: NativePart | None = None
    ) -> tuple[int, int, int]:
        """Return the numbers of keys that learned, were created, and wait; `part` is the slice that the push is of."""

    def reduce(self, part: NativePart, values: _F32, digest: int) -> None:
        """Give a slice's values of a dense vector, without waiting for others."""

    def reduced(self, step: int, slices: int, out: _F32, wait_ms: int) -> bool | None:
        """Write the sum into `out`; return None while slices are missing, else whether all were finite."""

    def order_all(self, bodies: Sequence[bytes], wait_ms: int) -> list[bytes | Exception]:
        """Send order i to shard i; return the answers or exceptions."""

    def stats(self) -> list[dict[str, float]]:
        """Statistics by shard."""

    def close(self) -> None:
        """Close all connections."""

# Ingest and marks. `streamlearn.ingest` and `streamlearn.marks` say what each call does.

_I32: TypeAlias = npt.NDArray[np.int32]
_Raw: TypeAlias = bytes
_Spans: TypeAlias = tuple[_U8, _I64]
_Origins: TypeAlias = tuple[_I32, _I64, _I32]

class JoinCore:
    """The join of a lot."""

    watermark_ms: int | None
    bytes: int
    pending: int
    waiting: int
    ready: int
    letters: int

    def __init__(self, rules: JoinRules) -> None: ...
    def add_impressions(
        self, ids: _Spans, times: _I64, origins: _Origins, items: tuple[_U64, _I64], payloads: _Spans
    ) -> None:
        """Add all impressions, or none."""

    def add_actions(self, ids: _Spans, times: _I64, origins: _Origins, items: _U64, what: tuple[_U8, _F32]) -> None:
        """Add all actions, or none."""

    def advance(self, watermark_ms: int) -> None:
        """Advance the watermark and make the rows that are due."""

    def take(self, rows_max: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Take out columns of requests, rows and letters."""

    def next_deadline_ms(self) -> int | None:
        """A lower bound of the next watermark that has an effect."""

    def counters(self) -> list[tuple[str, int]]:
        """Counters by name."""

def is_request_logged(request_id: bytes, share: float) -> bool:
    """Whether serving logs a request, given the logged share."""

_MarkedRequests: TypeAlias = tuple[_I32, _I64, _I64]
_MarkedRows: TypeAlias = tuple[_I32, _I32, _U32, _U32]
_MarkedNumbers: TypeAlias = tuple[_I64, _F32]

class Marks:
    """Marks: two bits for every identity and label."""

    horizon_ms: int | None
    bytes: int
    pages: int
    inflight: int

    def __init__(self, labels: int, numbers: int, items_max: int, bytes_max: int) -> None: ...
    def settle(
        self, step: int, topic: str, requests: _MarkedRequests, rows: _MarkedRows, numbers: _MarkedNumbers
    ) -> tuple[_U32, _U32, _U8, _U32, _F32]:
        """Return labels to learn and correct, old rows, labels known to be positive, and the numbers before."""

    def refuse(
        self, step: int, topic: str, requests: _MarkedRequests, rows: _MarkedRows, numbers: _MarkedNumbers
    ) -> None:
        """Mark the labels that the rows settle as refused."""

    def acknowledge(self, step: int) -> None:
        """Mark all steps up to `step` as learned."""

    def forget(self, horizon_ms: int) -> None:
        """Drop the marks older than the horizon."""

    def save(self, since: int) -> tuple[int, list[tuple[str, _Raw]]]:
        """Return this save's number and the learned changes since a save."""

    def load(self, named: Sequence[tuple[str, _Bytes]]) -> int:
        """Apply a save on top of those loaded before."""

    def relabelled(self, sources: Sequence[int | None], numbers: int) -> Marks:
        """Return the same marks for other labels: each has the marks of its source, or none."""

    def counters(self) -> list[tuple[str, int]]:
        """Counters by name."""

# Features.

class Features:
    """Computed features of one kind of entity."""

    bytes_max: int

    def __init__(self, definition: str) -> None: ...
    def fold(
        self, stored: Sequence[bytes | None], interactions: Sequence[npt.NDArray[Any]]
    ) -> tuple[_U8, list[bytes], int]:
        """Return what became of each stored state, the new states, and the number of interactions that were new.

        `interactions` are arrays of entities, times, identities, positions, kinds, values and columns.
        """

    def evaluate(
        self, stored: Sequence[bytes | None], entities: npt.NDArray[np.uint32], now_ms: npt.NDArray[np.int64]
    ) -> tuple[_U8, npt.NDArray[np.int64], list[list[npt.NDArray[Any]]]]:
        """Return what became of each stored state, and its position; and by feature keys and their ends, or numbers."""

class MemoryStates:
    """States in memory; its argument is as that of `Features`."""

    def __init__(self, definition: str) -> None: ...
    def run(
        self, rows: tuple[_U64, npt.NDArray[np.int64], _U64, _U8, npt.NDArray[np.float32], _U64]
    ) -> list[list[npt.NDArray[Any]]]:
        """Fold interactions and evaluate, row by row: (entities, times, identities, kinds, numbers, values).

        Kind 255 is an evaluation; return as `Features.evaluate` does, for these rows.
        """

class Repeats:
    """The identities of the last interactions of a log, at most `most` of them."""

    def __init__(self, most: int) -> None: ...
    def note(self, identities: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Note interactions; return of each whether it is new."""

    def __len__(self) -> int: ...

# Load.

_AskAnswer: TypeAlias = tuple[str | None, str, bytes | None]

class Load:
    """Connections to a serving node, and messages for it.

    Args:
        address: HOST:PORT.
        path: The path to post messages to over HTTP/1.1; without one they are sent as gRPC messages of the Open
            Inference Protocol.
        messages: Requests, encoded.
        token: The token that the node requires.
        limits: The limits of its connections.
        authority: For TLS over gRPC: the file of the certificate that signed the node's, which may be for any name.

    Raises:
        ServiceError: The node does not answer.
        ConfigError: The file cannot be used.
    """

    def __init__(
        self,
        address: str,
        path: str | None,
        messages: Sequence[bytes],
        token: str | None,
        limits: LoadLimits,
        authority: Path | None = None,
    ) -> None: ...
    def ask(self, message: int, wait_ms: int) -> _AskAnswer:
        """Return the status code, its message and the answer to one message; the code is None without a reply."""

    def ask_all(self, messages: Sequence[bytes], wait_ms: int) -> list[_AskAnswer]:
        """Like `ask` for other messages, all sent at once, in their order; returns when the last is answered."""

    def start(self, plan: LoadPlan) -> LoadRun:
        """Start to send requests.

        Raises:
            UsageError: A number is out of range.
        """

class LoadRun:
    """A load run, in progress or ended; dropping it ends it."""

    def wait(self, wait_ms: int) -> bool:
        """Wait up to `wait_ms`; return whether the run has ended."""

    def stop(self) -> None:
        """End the run."""

    def progress(self) -> dict[str, int]:
        """The fields of `LoadProgress`."""

    def outcome(self) -> dict[str, Any] | None:
        """The result, once the run has ended."""

# The front of a serving node.

_Buckets: TypeAlias = tuple[list[int], list[int], list[int]]

def choose_ladders(
    demands: list[tuple[list[tuple[int, int]], list[tuple[int, float]]]], top: int, buckets_max: int, multiple: int
) -> list[list[int]]:
    """Choose the cheapest ladder with one bucket, with at most two, and so on, by exact dynamic programming.

    Args:
        demands: For each sequence length the histogram of sizes, and the measured cost of buckets.
        top: The last bucket.
        buckets_max: The maximum number of buckets.
        multiple: The number that buckets are multiples of.

    Raises:
        ValueError: A number is 0, or demand or cost is missing.
    """

def ladder_figures(
    sizes: list[int], demands: list[tuple[list[tuple[int, int]], list[tuple[int, float]]]]
) -> tuple[float, float]:
    """The share of padding rows in a ladder's computation, and the mean cost of one execution.

    Raises:
        ValueError: The sizes do not form a ladder, or demand or cost is missing.
    """

class FrontFigures:
    """The load of a front; `backlog_s` is the predicted time until all waiting requests are done.

    `margin_s` is the time that requests keep before their deadlines. `lanes_rest` is the share of their time that lanes
    should rest, so that requests are read in time. `value` is None without an allowance, else the value of requests
    since the start, offered and admitted, and the price of lane time.
    """

    requests: int
    candidates: int
    lanes_busy: int
    lanes_rest: float
    backlog_s: float
    margin_s: float
    value: tuple[float, float, float] | None

class FrontHistogram:
    """A histogram since the start; `buckets` are upper bounds with cumulative counts."""

    buckets: list[tuple[int, int]]
    count: int
    sum: int

class FrontMeasures:
    """What a front has measured since the start.

    Attributes:
        refusals: Refused requests by reason.
        retried: Requests that were retried alone.
        without_arm: Requests answered for no arm, because the version of theirs could not answer.
        waits: Waits for a lane, in microseconds.
        requests: Requests of a TensorBatch.
        candidates: Candidates of a TensorBatch.
        recall: Items of sampled requests that a search of some cells found, and that it did not.
    """

    refusals: dict[str, int]
    retried: int
    without_arm: int
    waits: FrontHistogram
    requests: FrontHistogram
    candidates: FrontHistogram
    searches: FrontHistogram
    found: tuple[int, int]
    recall: tuple[int, int]
    filled: tuple[int, int]

class Blocks:
    """The vectors of a version's items, to be searched. A version shares the blocks that it does not change.

    Args:
        dim: The length of a vector: a multiple of 4, at most 512.
    """

    def __init__(self, dim: int) -> None: ...
    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int:
        """The memory of this version, what it shares with others included."""

    @property
    def cells(self) -> int:
        """The number of cells; 0 without."""

    def in_cells(self, cells: int) -> Blocks:
        """The same vectors in cells of similar ones; raises ValueError if there are fewer vectors than cells."""

    def apply(
        self,
        keys: npt.NDArray[np.uint64],
        values: npt.NDArray[np.int8],
        scales: npt.NDArray[np.float32],
        removed: npt.NDArray[np.uint64],
    ) -> Blocks:
        """The next version: vectors int8[n, dim] with a factor each, new or changed, and keys without one.

        Raises:
            ValueError: Arrays do not fit each other, or a key is given twice.
        """

    def search(
        self,
        users: npt.NDArray[np.float32],
        k: int,
        excluded: Sequence[npt.NDArray[np.uint64]] = (),
        allowed: npt.NDArray[np.uint64] | None = None,
        threads: int = 1,
        probes: int | None = None,
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """The k items with the highest product for each user, float32[users, dim]: keys, scores, and each user's end.

        It is exact; items of one score are in the order of their keys. `excluded` has keys for each user, or is empty.
        With `probes` it looks into as many cells, those nearest to the user, and is not exact.

        Raises:
            ValueError: Arrays do not fit each other, or a number is not finite.
        """

class RawIds:
    """The ids of a version's items by key. A version shares the pages that it does not change.

    Args:
        is_text: Whether ids are texts; otherwise they are integers.
    """

    def __init__(self, is_text: bool) -> None: ...
    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int:
        """The memory of this version, what it shares with others included."""

    def apply(
        self,
        keys: npt.NDArray[np.uint64],
        ids: npt.NDArray[np.int64] | tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]],
        removed: npt.NDArray[np.uint64],
    ) -> RawIds:
        """The next version: ids, or the offsets and bytes of texts, for keys, and keys without one.

        Raises:
            ValueError: There is not one id for each key, or a key is given twice.
        """

    def lacks(self, keys: npt.NDArray[np.uint64]) -> int | None:
        """The first of some keys that has no id."""

class ItemFeatures:
    """What describes a version's items by key. A version shares the pages that it does not change.

    Args:
        forms: Of each column: "one", "many" or "weighted" for a slot; "dense" with a width.
    """

    def __init__(self, forms: Sequence[tuple[str, int]]) -> None: ...
    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int:
        """The memory of this version, what it shares with others included."""

    def apply(
        self,
        keys: npt.NDArray[np.uint64],
        columns: Sequence[Sequence[npt.NDArray[Any]]],
        removed: npt.NDArray[np.uint64],
    ) -> ItemFeatures:
        """The next version: columns of keys, and keys without any.

        A column is the keys of a slot, perhaps offsets and then weights; or the numbers of a dense column.

        Raises:
            ValueError: A column does not fit the keys or its form, or a key is given twice.
        """

    def describe(self, front: Front, handle: int) -> None:
        """Give them to a version of a front, by its handle.

        Raises:
            ValueError: The front takes other columns from a library, or none.
        """

def encode_vectors(vectors: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Vectors float32[n, dim] as int8 values and a factor each; the same bytes on every processor.

    Raises:
        ValueError: A number is not finite.
    """

class Front:
    """Queues requests, from which lanes take TensorBatches and return scores.

    Args:
        description: The JSON of `streamlearn.serving.model_schema`.
        buckets: Padded sizes of users, candidates and lengths, each ascending.
        limits: The limits of the queue, and deadlines.
        slabs_idle_max: Maximum idle slabs of packed TensorBatches that are kept for reuse.
        shadows_max: Maximum answered requests that wait to be scored by the shadow version.
        slabs_shared: The number of slabs in memory that other processes may read; by default slabs are created as
            needed, for this process only.

    Raises:
        ValueError: The description or a ladder is invalid.
    """

    def __init__(
        self,
        description: str,
        buckets: _Buckets,
        limits: FrontLimits,
        slabs_idle_max: int,
        shadows_max: int = 256,
        *,
        slabs_shared: int | None = None,
    ) -> None: ...
    def add(
        self,
        version: int,
        tables: TableSet,
        identity: int = 0,
        items: tuple[Blocks, RawIds, int | None, int | None] | None = None,
    ) -> int:
        """Make a version available to requests that name it; return its handle. It does not keep the tables alive.

        `identity` tells versions of one number apart, on all nodes alike. A front that finds items needs `items`: their
        vectors, their ids, and the event time up to which the version has learned.

        Raises:
            ValueError: The front finds items and none are given, or vectors of another length; or it finds none.
        """

    def activate(self, handle: int) -> bool:
        """Answer requests that name no version with this one; return whether it exists."""

    def set_canary(self, canary: tuple[int, float] | None = None) -> None:
        """Answer a share of the requests that name no version with a canary: `(handle, share)`."""

    def remove(self, handle: int) -> None:
        """Stop answering with a version."""

    def versions(self) -> tuple[int | None, list[int]]:
        """The number of the active version, and of all versions that may be named."""

    def waiting(self) -> int:
        """The number of requests that wait for an answer."""

    def figures(self) -> FrontFigures:
        """The present load."""

    def set_shadow(self, shadow: tuple[int, float] | None = None) -> None:
        """Let a version score a share of the requests that name none, after their answer: `(handle, share)`."""

    def shadow(self) -> str:
        """The state of the shadow version, as JSON; see `/shadow`."""

    def rows(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows run and padding rows among them, of the user graph and of the score graph."""
    def measured(self) -> FrontMeasures:
        """What it has measured since the start."""

    def drain(self) -> None:
        """Accept no more requests; waiting ones are still answered."""

    def set_costs(self, user_us: list[list[float]], score_us: list[list[float]]) -> None:
        """Set the cost of each bucket in microseconds: lists by length, then by bucket.

        Raises:
            ValueError: The lists do not match the buckets.
        """

    def take(self, lane: int, wait_s: float) -> FrontWork | None:
        """The next work of a lane; None if none arrived in time."""

    def give(self, work: FrontWork, scores: npt.NDArray[np.float32]) -> None:
        """Return scores, float32[candidates or more, labels]; rows beyond the work's candidates are ignored.

        Raises:
            RuntimeError: The work was returned already.
            ValueError: The number of labels does not match.
        """

    def slabs(self) -> tuple[int, int, int] | None:
        """The file of slabs that other processes read, its size in bytes, and the offset of a spare slab."""

    def leave(self, lane: int) -> None:
        """Mark a lane as absent until it takes work again."""

    def lose(self, work: FrontWork, said: str) -> None:
        """Report that a lane was lost with its work, as in `fail`. Refused callers may retry.

        Raises:
            RuntimeError: The work was returned already.
        """

    def fail(self, work: FrontWork, said: str) -> None:
        """Report that the work failed.

        Raises:
            RuntimeError: The work was returned already.
        """

class FrontWork:
    """A TensorBatch taken by a lane. Each tensor is a DLPack capsule that may be consumed once.

    Attributes:
        handle: The handle of the version to score with.
        version: Its number.
        candidates: The number of candidates; rows beyond are padding.
    """

    handle: int
    version: int
    candidates: int

    def user(self) -> list[Any]:
        """The inputs of the user graph."""

    def user_index(self) -> Any:
        """The row of each candidate's user, int32."""

    def item(self) -> list[Any]:
        """The candidate inputs of the score graph."""

    def places(self) -> tuple[list[tuple[int, list[int]]], list[tuple[int, list[int]]]]:
        """The byte offset of each tensor in the file of `Front.slabs`, and its shape, for the user and the score graph.

        Raises:
            RuntimeError: The work was returned already, or is not in shared memory.
        """

class SharedSlabs:
    """Slabs that another process created.

    Args:
        file: The file of `Front.slabs`; its owner keeps it.

    Raises:
        ValueError: The number is not a file descriptor.
    """

    def __init__(self, file: int) -> None: ...
    def tensor(self, at: int, shape: Sequence[int], is_int: bool) -> Any:
        """A DLPack capsule of the tensor at a byte offset.

        Raises:
            ValueError: The tensor does not fit the slabs.
        """

class FeatureFigures:
    """The counters of a reader of states since its start.

    Attributes:
        requests: Requests whose users are known, and are unknown; those whose states did not come in time, and those
            that lacked no column.
        items: Candidates whose states were in the cache, and those whose states were read.
        states_bad: States that could not be read as such.
        waits: The time that requests waited for states, in microseconds.
        error: The error that ended the last connection; empty while there is one.
    """

    requests: list[int]
    items: list[int]
    states_bad: int
    waits: FrontHistogram
    error: str

class NodeLists:
    """The lists of candidates that a node answers with.

    Args:
        front: The front that finds items.
        user: The slot that names users.
        waits_s: How long a request waits for its list, and a connection to be made.
        redis: As `NodeFeatures` takes it.
        read: Likewise, with 0 for the side.
    """

    def __init__(
        self,
        front: Front,
        user: str,
        waits_s: tuple[float, float],
        redis: RedisAddress | None,
        read: Callable[[list[tuple[int, int]]], list[bytes | None] | None] | None,
    ) -> None: ...
    def answer(self, node: FrontNode) -> None:
        """Have a node answer with lists from now on."""

    def set_group(self, name: str, partitions: int) -> None:
        """Set where lists are."""

    def allow(self, answering: tuple[int, int], of_lists: Sequence[tuple[int, int]]) -> None:
        """Set the version that answers, as number and identity, and those whose lists may stand in for it."""

    def figures(self) -> tuple[list[tuple[str, int]], str]:
        """Return how often each outcome came, and the error that ended the last connection, if there is none now."""

class NodeFeatures:
    """Computes the columns that requests to a node lack.

    Args:
        front: The front that answers the requests.
        description: JSON of the computed columns: by side, `{"definition", "key", "columns": [{"name", "form",
            "default"}]}`.
        limits: A `ReadLimits` of `streamlearn.serving.node_features`.
        redis: A `RedisAddress`, to read states from.
        read: In place of it, what reads states: it takes pairs of a side, 0 for the user, and a key.

    Raises:
        ValueError: The description does not match the inputs of the front.
    """

    def __init__(
        self,
        front: Front,
        description: str,
        limits: ReadLimits,
        redis: RedisAddress | None,
        read: Callable[[list[tuple[int, int]]], list[bytes | None] | None] | None,
    ) -> None: ...
    def set_group(self, side: int, name: str, partitions: int) -> None:
        """Set where the states of a side are; 0 is the user's."""

    def set_time(self, at_ms: int | None) -> None:
        """Set the time of evaluation; None: the clock's."""

    def figures(self) -> FeatureFigures:
        """The counts."""

class StateClient:
    """Evaluates the computed columns of users and items, and reads their states from a Redis.

    What it returns of a side: of each entity whether something is known, as 0 or 1, and the position of its state; and
    of each column the values, one or a list for each entity.

    Args:
        description: As `NodeFeatures` takes it.
        redis: A `RedisAddress`; None for callers that read states themselves.
        reach_s: The time for a connection, and for an answer before the connection is given up.
        cache_bytes: The memory for states of items that were read.
        cache_age_s: How long such a state is used.

    Attributes:
        states_bad: The number of states that could not be read.

    Raises:
        ValueError: The description is wrong.
    """

    states_bad: int
    def __init__(
        self, description: str, redis: RedisAddress | None, reach_s: float, cache_bytes: int, cache_age_s: float
    ) -> None: ...
    def set_group(self, side: int, name: str, partitions: int) -> None:
        """Set where the states of a side are; 0 is the user's."""

    def read(
        self, keys: list[tuple[int, npt.NDArray[np.uint64]]], at_ms: int, wait_s: float
    ) -> list[tuple[bytes, list[int], list[list[Any]]]] | None:
        """Take the keys of entities by side, and return the columns of each side; None without an answer in time."""

    def evaluate(self, side: int, stored: list[bytes | None], at_ms: int) -> tuple[bytes, list[int], list[list[Any]]]:
        """Return the columns of one side from states that were read elsewhere."""

class ShownFigures:
    """The state of an impression log.

    Attributes:
        waiting: Events that wait.
        waiting_bytes: Their bytes.
        dropped: Requests dropped since the start, because the log was full.
        refused: Requests refused since the start.
        reason: The reason of the last refusal.
    """

    waiting: int
    waiting_bytes: int
    dropped: int
    refused: int
    reason: str

class Shown:
    """The impression log: answered requests that wait to become impressions.

    Args:
        model: The model's name.
        front: The front that answers the requests.
        description: JSON that describes how to write impressions: `{"prefix", "user_segments", "item_segments",
            "items_max", "defaults"}`.
        share: The share of requests.
        events_max: Maximum waiting events.
        bytes_max: Maximum bytes of the waiting events.

    Raises:
        ValueError: The description is invalid, or lacks a default.
    """

    def __init__(
        self, model: str, front: Front, description: str, *, share: float, events_max: int, bytes_max: int
    ) -> None: ...
    def chooses(self, id: str) -> bool:
        """Whether requests with this id are written."""

    def take(
        self, wait_s: float, linger_s: float, events_max: int, event_bytes_max: int
    ) -> dict[str, npt.NDArray[Any]] | None:
        """The fields of `EncodedEvents`, with at most these numbers of events and of bytes each; None if none wait."""

    def close(self) -> None:
        """Accept no more events, and return the waiting ones without delay."""

    def figures(self) -> ShownFigures:
        """The present state."""

class FrontNode:
    """Serves a front by gRPC and HTTP until it is stopped.

    Args:
        model: The model's name.
        front: The front.
        addresses: HOST:PORT of gRPC, and of HTTP if it is served.
        limits: Its limits.
        metrics: Returns metrics in Prometheus format.
        token: The token that callers must send.
        tls: Files of certificate and key.
        sockets: Descriptors of listening sockets, used in place of the addresses. It makes its own ones of them.
        aside: The reason to stand aside from the start.

    Attributes:
        grpc: The address of gRPC.
        http: The address of HTTP.
        is_aside: Whether it leaves new connections to another process.

    Raises:
        ServiceError: Listening at an address failed.
        ValueError: A bound is invalid, or two inputs have the same name.
    """

    grpc: str
    http: str | None

    def __init__(
        self,
        model: str,
        front: Front,
        addresses: tuple[str, str | None],
        limits: NodeLimits,
        *,
        metrics: Callable[[], str],
        token: bytes | str | Token | None = None,
        tls: tuple[Path, Path] | None = None,
        sockets: tuple[int, int | None] | None = None,
        aside: str | None = None,
    ) -> None: ...
    @property
    def is_aside(self) -> bool: ...
    def set_state(self, is_ready: bool, stale: str | None = None) -> None:
        """Set whether it answers requests, and why it is stale."""

    def stand_aside(self, reason: str | None) -> None:
        """Be not ready for a reason; with `sockets`, also accept no connections, and let those that it has leave.

        None ends that.
        """

    def leave(self) -> None:
        """Tell callers of HTTP with every answer to leave, while the node goes on answering."""

    def works(self, wait_s: float) -> bool:
        """Whether a thread of the servers takes up work within `wait_s`."""

    def write_back(self, shown: Shown) -> None:
        """Log answered requests from now on; only the first call has an effect."""

    def retrieve_by(self, front: Front) -> None:
        """From now on, find items by a front that was made for it, as model MODEL.retrieve."""

    def split(self, pieces_max: int, authority: Path | None) -> None:
        """Split requests into so many pieces at most, and take pieces of peers, from now on.

        With TLS, `authority` is the file of the certificate that signed those of peers.

        Raises:
            ConfigError: The authority cannot be used.
        """

    def follow(self, addresses: Sequence[str]) -> None:
        """Set where peers take pieces, each as IP:PORT."""

    def peers(self) -> tuple[int, int]:
        """The number of peers with a connection, and of all."""

    def pieces(self) -> list[tuple[str, int]]:
        """What became of pieces that were sent, and how many were taken; empty if requests are not split."""

    def compute(self, features: NodeFeatures) -> None:
        """Compute the columns that requests lack from now on; only the first call has an effect."""

    def open(self) -> list[tuple[int, int]]:
        """Open connections and requests, each with its maximum."""

    def lines(self) -> list[tuple[str, int, int, int]]:
        """For each protocol: connections accepted, bytes received and bytes sent."""

    def answers(self) -> list[tuple[str, bool, str, int]]:
        """Finished requests: protocol, whether they were for scoring, status, and count."""

    def refused(self) -> list[tuple[str, int]]:
        """The number of connections, requests and tokens that the door refused."""

    def decoding(self) -> FrontHistogram:
        """The time of decoding, in microseconds."""

    def stop(self) -> None:
        """Accept no more connections, and wait until those open have their answers."""
