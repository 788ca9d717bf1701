"""The compiled core. Private: import it through `streamlearn.native`, which checks its version.

Every array argument must be an aligned, C-contiguous, one-dimensional NumPy array of the type stated, and a
list is none: anything else is a `TypeError` that names the argument, what was expected and what was got.
Nothing is copied or converted in silence. The interpreter lock is released while the work is done; an array
must not be written to meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

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
        values: One integer a key.
        salt: The slot's salt.
        out: Where to write the keys, as long as `values`; a new array by default.

    Returns:
        `out`, or the new array.

    Raises:
        ValueError: `out` is of another length, is read-only, or shares memory with `values`.
    """

def hash_strings(offsets: _Offsets, data: _U8, salt: int, out: _U64 | None = None) -> _U64:
    """Keys of strings: XXH3-64 of their UTF-8 bytes, seeded by the salt.

    Args:
        offsets: n + 1 places that cut `data` into n strings, as in Arrow.
        data: The bytes of all strings, end to end.
        salt: The slot's salt.
        out: Where to write the keys, as long as there are strings; a new array by default.

    Returns:
        `out`, or the new array.

    Raises:
        ValueError: The offsets do not describe the data, or `out` cannot be written as in `hash_ints`.
    """

def check_offsets(offsets: _Offsets, length: int) -> None:
    """Check that offsets start at 0, never decrease and end at `length`.

    Raises:
        ValueError: They do not; it names the first bad place.
    """

# Partitions and spans.

def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key, as Kafka's default partitioner (murmur2) says.

    Raises:
        ValueError: There are no partitions.
    """

def partitions_of(offsets: npt.NDArray[np.int32], data: _U8, partitions: int) -> npt.NDArray[np.int32]:
    """The partition of each key, as Kafka's default partitioner (murmur2) says.

    Args:
        offsets: n + 1 places that cut `data` into n keys.
        data: The bytes of all keys, end to end.
        partitions: How many partitions there are.

    Raises:
        ValueError: The offsets do not describe the data, or there are no partitions.
    """

def take_spans(data: _U8, offsets: _I64, rows: _I64) -> tuple[_U8, npt.NDArray[np.int32]]:
    """Values of some rows, end to end, and the offsets that cut them.

    Args:
        data: The bytes of all rows, end to end.
        offsets: n + 1 places that cut `data` into n rows.
        rows: The rows wanted, in the order wanted.

    Raises:
        ValueError: The offsets do not describe the data, there is no such row, or 2 GiB would be taken.
    """

# Checksums.

def crc32c(data: _Bytes, seed: int = 0) -> int:
    """CRC32C of contiguous bytes, going on from `seed`, which is the checksum of what came before."""

def schema_fingerprint(canonical: _Bytes) -> int:
    """CRC-64-AVRO of a schema in parsing canonical form: what Avro's single-object framing carries."""

# Avro.

class AvroPlan:
    """How records of one Avro schema become columns of another, and back.

    Each leaf of the reader's schema is a column named by its dotted path; arrays do not show in it. What else
    there is at a path has a mark behind it:

    - `path`: values. boolean is bool, int and an enum's index int32, long int64, float float32, double
      float64; of string and bytes it is the data, uint8. Null has no column.
    - `path$`: int32 byte offsets of string and bytes, n + 1.
    - `path[]`: int32 offsets of an array's items, n + 1.
    - `path?`: uint8 validity of a nullable, 1 where there is a value. Where there is none, its columns hold 0
      or empty, so that all stay aligned.

    What is directly inside an array has the array's brackets before its own mark: of an array of nullable
    floats `x` the items' validity is `x[]?`, of an array of arrays the inner offsets are `x[][]`.

    The writer's schema may be any, as long as what the reader wants of it can be resolved by Avro's rules:
    promotion, aliases, defaults, skipped fields, enums by symbol. The reader's has records, arrays, unions of
    null and one type, and everything primitive or enum. Types nest at most 32 deep, a plan has at most 10,000
    nodes.

    Args:
        writer: The schema the records are written by, as JSON.
        reader: The schema the columns are of, as JSON; the writer's by default.

    Raises:
        ValueError: A schema is not one, cannot become columns, or cannot be read as the other; it names the
        path.
    """

    def __new__(cls, writer: str, reader: str | None = None) -> AvroPlan: ...
    @property
    def columns(self) -> list[tuple[str, str]]:
        """Name and dtype of each column, in the order of the schema."""

    def decode(
        self, buffer: _U8, starts: _I64, ends: _I64, *, items_max: int = 1_000_000
    ) -> tuple[dict[str, npt.NDArray[Any]], _I64, list[tuple[int, str]]]:
        """Decode records that lie in one buffer.

        A bad record leaves nothing in the columns, and does not stop those after it.

        Args:
            buffer: The bytes.
            starts: Where each record starts.
            ends: Where each record ends.
            items_max: How many items one array may have; and items of no bytes (nulls, say) all arrays of a record.

        Returns:
            The columns; for each row the index of its record; and for each bad record its index and the
            reason.

        Raises:
            ValueError: A span is not inside the buffer, or a column would outgrow int32 offsets.
        """

    def decode_list(
        self, records: list[bytes], skip: int = 0, *, items_max: int = 1_000_000
    ) -> tuple[dict[str, npt.NDArray[Any]], _I64, list[tuple[int, str]]]:
        """Decode records of one `bytes` each, without the first `skip` of them (a 10-byte header, say).

        Returns:
            As `decode` does.

        Raises:
            TypeError: Something in the list is not `bytes`.
            ValueError: A column would outgrow int32 offsets.
        """

    def encode(self, columns: Mapping[str, npt.NDArray[Any]], rows: int, prefix: _Bytes = b"") -> tuple[_U8, _I64]:
        """Write columns as records; only a plan of one schema can.

        Where validity is 0, null is written, whatever the columns below it hold.

        Args:
            columns: Named and typed as `columns` says. A field of which no column is given is written as its
                default.
            rows: How many records.
            prefix: Written before each record.

        Returns:
            The records end to end, and rows + 1 offsets that part them.

        Raises:
            TypeError: A column is of another type; it is named.
            ValueError: A column is missing and has no default, is not in the schema, has another length than
                the rows or offsets above it say, or holds what its type forbids; it is named. Or the plan is
                of two schemas.
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
_Column: TypeAlias = tuple[str, int, int, str, Any, Any, Any]

class TablePin:
    """A version that is not retired while this lives."""

    version: int

class TableExport:
    """What changed between two versions; both are kept while this lives."""

    def read(self, table: int, begin: int, end: int) -> tuple[_U64, _U8, _F32, _F32, _U32, _U8, _U64]:
        """Keys, numbers, scales, state, ticks, counts of the rows of some parts, and keys that are gone."""

    def close(self) -> None:
        """Let go of both versions."""

class TableSet:
    """Tables under one count of versions.

    Args:
        settings: Of each table `(dim, row_type, rule, admission, (seed, range), tick_ms, rows_max)`, where `rule` is
            `(kind, numbers, weight_decay, clip_norm, clip_value)` or None, and `admission` is
            `(width_counters, window_ms)` or None.
    """

    retained: list[int]
    sealed: int | None
    active: int | None
    retiring: int

    def __init__(self, settings: Sequence[tuple[Any, ...]]) -> None: ...
    def lookup(self, table: int, keys: _U64, at: _At, out: _F32, threads: int) -> None:
        """Rows into `out`, as of a version."""

    def push(
        self,
        table: int,
        keys: _U64,
        gradients: _F32,
        counts: _U32 | None,
        admit: Sequence[tuple[int, int]],
        times: tuple[int, float],
        threads: int,
    ) -> tuple[int, int, int]:
        """Keys that learned, were created, and wait; `times` is table time and the scale of the rate."""

    def put(
        self,
        table: int,
        keys: _U64,
        rows: tuple[_F32 | None, _U8 | None, _F32 | None],
        state: _F32 | None,
        uses: tuple[_U32 | None, _U8 | None],
        refuse_twice: bool,
        threads: int,
    ) -> None:
        """Rows as floats, or as stored numbers and scales; uses are ticks and counts."""

    def remove(self, table: int, keys: _U64, refuse_twice: bool, threads: int) -> int:
        """How many keys were there."""

    def expire(
        self, table: int, expiry: tuple[int | None, int, int, int | None], now_ms: int, budget_keys: int
    ) -> tuple[int, int, int, int]:
        """Keys scanned, idle, rare, and over; `expiry` is idle_ms, count_min, rare_idle_ms, keys_max."""

    def hands(self, table: int, begin: int, end: int) -> tuple[int, _U64]:
        """Which part expiry looks at next, and where it is in some parts."""

    def set_hands(self, table: int, begin: int, next_part: int, hands: _U64) -> None:
        """Put them where they were."""

    def take_pages(self, table: int, begin: int, end: int, changed_only: bool) -> list[tuple[int, bytes]]:
        """Counts of keys without a row, by part."""

    def put_page(self, table: int, part: int, bytes: bytes) -> None:
        """Put the counts of a part back."""

    def clear_pages(self, table: int) -> None:
        """Forget all counts."""

    def seal(self, version: int) -> None:
        """Close the version that is open."""

    def commit(self, version: int) -> None:
        """Keep the sealed version."""

    def abandon(self, version: int) -> None:
        """Give up the sealed version; what it wrote belongs to the open one again."""

    def discard(self, threads: int) -> None:
        """Drop what is not committed."""

    def activate(self, version: int) -> None:
        """Make readers follow a version."""

    def retire(self, version: int, wait_ms_max: int, threads: int) -> int:
        """Keep a version no longer; how many wait for readers."""

    def sweep(self, wait_ms_max: int, threads: int) -> int:
        """Let go of retired versions whose readers have passed; how many still wait."""

    def begin_staging(self, parent: int | None) -> None:
        """Have the version that is open for oneself; the parent must be the newest version."""

    def end_staging(self, version: int) -> None:
        """Seal and commit what was staged."""

    def drop_staging(self, threads: int) -> None:
        """Drop what was staged so far."""

    def pin(self, version: int) -> TablePin:
        """Hold a version."""

    def changed(self, since: int | None, upto: int) -> TableExport:
        """What changed after one version and no later than another."""

    def size(self, table: int) -> dict[str, int]:
        """What a table holds."""

def parts_of(keys: _U64) -> npt.NDArray[np.uint16]:
    """The part of a table that each key belongs to, for ever."""

def encode_rows(rows: _F32, dim: int, row_type: str) -> tuple[_U8, _F32]:
    """Rows as a row type stores them: numbers, and scales for int8."""

def pack_flat(source: _Source, columns: Sequence[_Column], shape: tuple[int, int, int, int], out: _F32) -> None:
    """Pack a flat matrix.

    Args:
        source: `(set, at)` reads tables; `(client, tables, version)` fetches rows of so many tables from shards.
        columns: `(name, table, at, pooling, keys, offsets, weights)`, and for plain numbers
            `(name, 0, at, "dense", numbers, None, width)`.
        shape: `(examples, examples_padded, width, stride)`.
        out: The matrix.
    """

def pack_sequences(
    source: _Source, columns: Sequence[_Column], shape: tuple[int, int, int, int, int], out: _F32
) -> None:
    """Pack a sequence block of shape `(users, users_padded, length, width, stride)`."""

class Scatter:
    """Sums of gradients by table and key."""

    bytes: int

    def __init__(self, dims: Sequence[int], keys_max: int) -> None: ...
    def clear(self) -> None:
        """Forget all sums."""

    def add_flat(self, columns: Sequence[_Column], shape: tuple[int, int, int, int], gradients: _F32) -> None:
        """Add the gradient of what `pack_flat` wrote."""

    def add_sequences(self, columns: Sequence[_Column], shape: tuple[int, int, int, int, int], gradients: _F32) -> None:
        """Add the gradient of what `pack_sequences` wrote."""

    def gradients(self, table: int) -> tuple[_U64, _F32, _U32]:
        """Distinct keys, their sums, and how often each came."""

# The parameter server. `streamlearn.ps` says what each call does.

_Epoch: TypeAlias = tuple[int, int]
_Limits: TypeAlias = Sequence[tuple[str, int]]

class PsServer:
    """A shard's sockets.

    Args:
        listen: `host:port` or `unix:/path`.
        shard: `(number, count, begin, end, model, fingerprint, specification)`.
        token: What callers must say.
        tls: Paths of certificates and key.
        threads: Threads that answer.
        limits: Numbers laid over the defaults.
    """

    addresses: list[str]

    def __init__(
        self,
        listen: list[str],
        shard: tuple[int, int, int, int, str, bytes, bytes],
        token: bytes | None,
        tls: tuple[str, str] | None,
        threads: int,
        limits: _Limits,
    ) -> None: ...
    def install(self, set: TableSet, epoch: _Epoch) -> None:
        """From now on read and write these tables, for this epoch."""

    def uninstall(self) -> None:
        """Let go of the tables, when no request uses them."""

    def next_order(self, wait_ms: int) -> tuple[int, bool, bytes] | None:
        """The next order's id, whether who asks only reads, and body."""

    def refused(self, wait_ms: int) -> tuple[list[tuple[str, str]], int]:
        """Connections that were refused, each with why, and how many more there were."""

    def answer(self, id: int, body: bytes) -> bool:
        """Answer an order; whether the asker was still there."""

    def refuse(self, id: int, code: str, text: str) -> bool:
        """Refuse an order."""

    def stats(self) -> dict[str, float]:
        """Figures since the start."""

    def stop(self, drain_ms: int) -> None:
        """Finish what was begun, and close."""

class PsClient:
    """All shards of a model.

    Args:
        who: `(addresses, role, client, model, fingerprint, dims, encoding, seed)`; the role is `trains`, `reads` or
            `asks`.
        token: What shards are told.
        tls: Path of the authority's certificates, and the name of the shards'.
        limits: Numbers laid over the defaults.
    """

    epoch: _Epoch | None

    def __init__(
        self,
        who: tuple[list[str], str, int, str, bytes, list[int], str, int],
        token: bytes | None,
        tls: tuple[str, str] | None,
        limits: _Limits,
    ) -> None: ...
    def set_epoch(self, epoch: _Epoch) -> None:
        """Begin an epoch."""

    def shards(self) -> list[tuple[str, int, int, _Epoch | None]]:
        """Address, first part, end of the parts, and epoch of each shard."""

    def pull(self, table: tuple[int, int], keys: _U64, at: int | None, is_distinct: bool, out: _F32) -> None:
        """Rows into `out`; the table by its number and dim."""

    def push(
        self,
        table: int,
        keys: _U64,
        gradients: _F32,
        counts: _U32 | None,
        admit: Sequence[tuple[int, int]],
        times: tuple[int, float],
    ) -> tuple[int, int, int]:
        """Keys that learned, were created, and wait."""

    def order_all(self, bodies: Sequence[bytes], wait_ms: int) -> list[bytes | Exception]:
        """Order i for shard i; answers, or errors."""

    def stats(self) -> list[dict[str, float]]:
        """Figures by shard."""

    def close(self) -> None:
        """Close all connections."""

# Ingest and marks. `streamlearn.ingest` and `streamlearn.marks` say what each call does.

_I32: TypeAlias = npt.NDArray[np.int32]
_Raw: TypeAlias = bytes
_Spans: TypeAlias = tuple[_U8, _I64]
_Origins: TypeAlias = tuple[_I32, _I64, _I32]

class JoinCore:
    """A lot's join.

    Args:
        groups: `(wait_ms, window_ms)` of each group.
        labels: `(action, group, rate, salt)` of each label.
        numbers: `(slice_ms, orphan_wait_ms, share, from_ms, pending_bytes_max, parts_max, waiting_max)`.
        snapshot: What to restore.
    """

    watermark_ms: int | None
    bytes: int
    pending: int
    waiting: int
    ready: int
    letters: int

    def __init__(
        self,
        groups: Sequence[tuple[int, int]],
        labels: Sequence[tuple[int, int, float, int]],
        numbers: tuple[int, int, float, int, int, int, int],
        snapshot: _Bytes | None = None,
    ) -> None: ...
    def add_impressions(
        self, ids: _Spans, times: _I64, origins: _Origins, items: tuple[_U64, _I64], payloads: _Spans
    ) -> None:
        """Add impressions, all or none."""

    def add_actions(self, ids: _Spans, times: _I64, origins: _Origins, items: _U64, what: tuple[_U8, _F32]) -> None:
        """Add actions, all or none."""

    def advance(self, watermark_ms: int) -> None:
        """Make the rows that are due."""

    def take(self, rows_max: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Columns of requests, rows and letters."""

    def next_deadline_ms(self) -> int | None:
        """The lowest watermark that does anything."""

    def snapshot(self) -> _Raw:
        """Everything that is held."""

    def counters(self) -> list[tuple[str, int]]:
        """What was counted."""

def is_request_logged(request_id: bytes, share: float) -> bool:
    """Whether a request is among the share of requests that serving logs."""

_MarkedRequests: TypeAlias = tuple[_I32, _I64, _I64]
_MarkedRows: TypeAlias = tuple[_I32, _I32, _U32, _U32]

class Marks:
    """Two bits for every identity and label."""

    horizon_ms: int | None
    bytes: int
    pages: int
    inflight: int

    def __init__(self, labels: int, items_max: int, bytes_max: int) -> None: ...
    def settle(self, step: int, topic: str, requests: _MarkedRequests, rows: _MarkedRows) -> tuple[_U32, _U32, _U8]:
        """What to learn, what to correct, and which rows are too old."""

    def refuse(self, step: int, topic: str, requests: _MarkedRequests, rows: _MarkedRows) -> None:
        """Mark what rows settle as refused."""

    def acknowledge(self, step: int) -> None:
        """All steps up to this one are learned."""

    def forget(self, horizon_ms: int) -> None:
        """Let go of what is older."""

    def save(self, since: int) -> tuple[int, list[tuple[str, _Raw]]]:
        """What was learned and changed since a save."""

    def load(self, named: Sequence[tuple[str, _Bytes]]) -> int:
        """Put a save on top."""

    def counters(self) -> list[tuple[str, int]]:
        """What was counted."""

# Load.

_AskAnswer: TypeAlias = tuple[str | None, str, bytes | None]

class Load:
    """Connections to a serving node, and messages for it.

    Args:
        address: HOST:PORT.
        path: Where messages are posted by HTTP/1.1; without one they are the Open Inference Protocol's, over gRPC.
        messages: Requests, encoded.
        token: What the node wants to be told to let a caller in.
        numbers: `(connections, threads, connect_wait_ms_max, answer_bytes_max)`.

    Raises:
        ServiceError: Nobody answers there.
    """

    def __init__(
        self,
        address: str,
        path: str | None,
        messages: Sequence[bytes],
        token: str | None,
        numbers: tuple[int, int, int, int],
    ) -> None: ...
    def ask(self, message: int, wait_ms: int) -> _AskAnswer:
        """The code, what was said with it, and the answer to one message; no code where nothing came."""

    def ask_all(self, messages: Sequence[bytes], wait_ms: int) -> list[_AskAnswer]:
        """The same of other messages, all sent at once, in their order; returns when the last is answered."""

    def start(
        self,
        pace: tuple[str, float, int],
        bursts: tuple[float, float, float],
        times: tuple[int, int, int | None, int],
        outstanding_max: int,
    ) -> LoadRun:
        """Begin to send.

        Args:
            pace: `("poisson" | "constant" | "bursts", rate, seed)`, or `("closed", callers, seed)`.
            bursts: `(factor, lasts_s, every_s)`.
            times: `(seconds, warmup_ms, deadline_ms, answer_wait_ms_max)`.
            outstanding_max: How many requests may be without an answer.

        Raises:
            UsageError: A number cannot be.
        """

class LoadRun:
    """A run that goes on, or has ended; it ends when it is let go."""

    def wait(self, wait_ms: int) -> bool:
        """Whether it has ended, within that time."""

    def stop(self) -> None:
        """End it."""

    def progress(self) -> tuple[int, int, int, int]:
        """Requests that were due, were answered, failed, and are under way."""

    def outcome(self) -> dict[str, Any] | None:
        """What came of it, once it has ended."""

# The front of a serving node.

_Buckets: TypeAlias = tuple[list[int], list[int], list[int]]

def choose_ladders(
    demands: list[tuple[list[tuple[int, int]], list[tuple[int, float]]]], bounds: tuple[int, int, int]
) -> list[list[int]]:
    """The ladders that cost least of one bucket, of two at most, and so on, by exact dynamic programming.

    Args:
        demands: For each sequence length how often each size came, and what each bucket that was measured costs.
        bounds: The last bucket, how many there may be, and what they are multiples of.

    Raises:
        ValueError: A bound is 0, or there is no demand or no cost.
    """

def ladder_figures(
    sizes: list[int], demands: list[tuple[list[tuple[int, int]], list[tuple[int, float]]]]
) -> tuple[float, float]:
    """Which share of the rows that a ladder computes is padding, and what one execution costs in the mean.

    Raises:
        ValueError: The sizes are no ladder, or there is no demand or no cost.
    """

class Front:
    """Where requests wait, and where lanes take TensorBatches and give scores back.

    Args:
        description: What `streamlearn.serving.model_schema` says.
        buckets: Users, candidates and lengths that are padded to, each growing.
        limits: `(lanes, requests_max, candidates_max, reserved_percent, slack_us, degraded_candidates)`.
        waits_us: The deadline of a request that names none, and the longest.
        slabs_idle_max: Memory of packed TensorBatches that is kept for the next, each.
        shadows_max: How many answered requests may wait to be scored by the version that shadows.
        slabs_shared: So many slabs there are, in memory that other processes may read; by default as many as are
            needed, in this process alone.

    Raises:
        ValueError: The description or a ladder is none.
    """

    def __init__(
        self,
        description: str,
        buckets: _Buckets,
        limits: tuple[int, int, int, int, int, int],
        waits_us: tuple[int, int],
        slabs_idle_max: int,
        shadows_max: int = 256,
        *,
        slabs_shared: int | None = None,
    ) -> None: ...
    def add(self, version: int, tables: TableSet) -> int:
        """Let a version answer those who name it; gives its handle. It keeps no tables alive."""

    def activate(self, handle: int) -> bool:
        """Let a version answer those who name none; gives whether it is there."""

    def set_canary(self, canary: tuple[int, float] | None = None) -> None:
        """Let a version answer a share of those who name none: `(handle, share)`."""

    def remove(self, handle: int) -> None:
        """Let a version answer nobody any more."""

    def versions(self) -> tuple[int | None, list[int]]:
        """The number of the version that answers, and of all that may be named."""

    def waiting(self) -> int:
        """How many requests wait for an answer."""

    def figures(self) -> tuple[int, int, int, float]:
        """Requests and candidates that wait, lanes that are busy, and seconds until all is done by prediction."""

    def set_shadow(self, shadow: tuple[int, float] | None = None) -> None:
        """Let a version score a share of those who name none, after they were answered: `(handle, share)`."""

    def shadow(self) -> str:
        """What is known of the version that shadows, as JSON; see `/shadow`."""

    def rows(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows that were run and rows of padding among them, of the user graph and of the score graph."""
    def measured(self) -> tuple[dict[str, int], int, list[tuple[list[tuple[int, int]], int, int]]]:
        """Refusals by why, how many were tried again, and waits, requests and candidates of TensorBatches by bounds."""

    def drain(self) -> None:
        """Take no more requests; those that wait are still answered."""

    def set_costs(self, user_us: list[list[float]], score_us: list[list[float]]) -> None:
        """Say what each bucket costs in microseconds, lists by length and then by bucket.

        Raises:
            ValueError: They are not those of the buckets.
        """

    def take(self, lane: int, wait_s: float) -> FrontWork | None:
        """The next work of a lane; None when there was none for so long."""

    def give(self, work: FrontWork, scores: npt.NDArray[np.float32]) -> None:
        """Hand back scores, float32[candidates or more, labels]; those beyond the work's candidates are not looked at.

        Raises:
            RuntimeError: The work was handed back before.
            ValueError: The scores are of other labels.
        """

    def slabs(self) -> tuple[int, int, int] | None:
        """The file of slabs that other processes read, its bytes, and where memory of one more slab begins."""

    def leave(self, lane: int) -> None:
        """A lane takes no more work until it asks for some again."""

    def lose(self, work: FrontWork, said: str) -> None:
        """Say that a lane was lost with its work; see `fail`. Whoever is refused may ask again.

        Raises:
            RuntimeError: The work was handed back before.
        """

    def fail(self, work: FrontWork, said: str) -> None:
        """Say that the work could not be done.

        Raises:
            RuntimeError: The work was handed back before.
        """

class FrontWork:
    """A TensorBatch in the hands of a lane; each tensor is a DLPack capsule, to be taken once.

    Attributes:
        handle: Of the version that is to score it.
        version: Its number.
        candidates: How many there are; what is beyond them is padding.
    """

    handle: int
    version: int
    candidates: int

    def user(self) -> list[Any]:
        """What the user graph takes."""

    def user_index(self) -> Any:
        """The row of each candidate's user, int32."""

    def item(self) -> list[Any]:
        """What the score graph takes of candidates."""

    def places(self) -> tuple[list[tuple[int, list[int]]], list[tuple[int, list[int]]]]:
        """Where in the file of `Front.slabs` each tensor begins, and its shape: the user graph's, the score graph's.

        Raises:
            RuntimeError: The work was handed back, or is in memory that no other process has.
        """

class SharedSlabs:
    """Slabs that another process made.

    Args:
        file: What `Front.slabs` gives; it stays its owner's.

    Raises:
        ValueError: It is no file.
    """

    def __init__(self, file: int) -> None: ...
    def tensor(self, at: int, shape: Sequence[int], is_int: bool) -> Any:
        """A DLPack capsule of the tensor that begins at so many bytes.

        Raises:
            ValueError: There is none.
        """

class Shown:
    """Answered requests that wait to become impressions.

    Args:
        model: The model's name.
        front: The front that answers them.
        description: JSON of how impressions are written: `{"prefix", "user_segments", "item_segments", "items_max",
            "defaults"}`.
        bounds: `(share, events_max, bytes_max)`: the share of requests, and what may wait.

    Raises:
        ValueError: The description is none, or lacks a default.
    """

    def __init__(self, model: str, front: Front, description: str, bounds: tuple[float, int, int]) -> None: ...
    def chooses(self, id: str) -> bool:
        """Whether requests of an id are written."""

    def take(
        self, wait_s: float, linger_s: float, bounds: tuple[int, int]
    ) -> tuple[_U8, _I64, npt.NDArray[np.int32], _U8, npt.NDArray[np.int32], _I64] | None:
        """What `EncodedEvents` holds, of so many events at most and so many bytes each; None when there are none."""

    def close(self) -> None:
        """Take no more, and give what waits without delay."""

    def figures(self) -> tuple[int, int, int, int, int, str]:
        """Events that wait, their bytes; requests noted, dropped and refused ever, and why the last was."""

class FrontNode:
    """A front that callers reach by gRPC and HTTP, until it is stopped.

    Args:
        model: Its name.
        front: The front.
        addresses: HOST:PORT of gRPC, and of HTTP if it is served.
        bounds: `(threads, connections_max, requests_max, http_bytes_max, drain_ms_max)`; threads decode and encode.
        metrics: Gives metrics as Prometheus reads them.
        door: What callers must say, and files of certificates and key.
        arriving: How many milliseconds a request may take to arrive, and a connection may be idle; bytes of headers.

    Attributes:
        grpc: Where gRPC is served.
        http: Where HTTP is served.

    Raises:
        ServiceError: An address cannot be listened at.
        ValueError: A bound is none, or two inputs have one name.
    """

    grpc: str
    http: str | None

    def __init__(
        self,
        model: str,
        front: Front,
        addresses: tuple[str, str | None],
        *,
        bounds: tuple[int, int, int, int, int],
        metrics: Callable[[], str],
        door: tuple[str | None, tuple[Path, Path] | None] = (None, None),
        arriving: tuple[int, int, int] | None = None,
    ) -> None: ...
    def set_state(self, is_ready: bool, stale: str | None = None) -> None:
        """Say whether it answers requests, and why it is stale."""

    def write_back(self, shown: Shown) -> None:
        """Note answered requests from now on; only the first call is heard."""
    def open(self) -> list[tuple[int, int]]:
        """Connections and requests that are there, each with the most there may be."""

    def lines(self) -> list[tuple[str, int, int, int]]:
        """Of each protocol, connections that came, bytes that came and bytes that went."""

    def answers(self) -> list[tuple[str, bool, str, int]]:
        """Requests that ended: their protocol, whether they were to be scored, their status, and how many."""

    def refused(self) -> list[tuple[str, int]]:
        """How often the door refused a connection, a request, and a token."""

    def decoding(self) -> tuple[list[tuple[int, int]], int, int]:
        """Microseconds that decoding took: how many up to each bound, how many in all, and their sum."""

    def stop(self) -> None:
        """Take no more connections, and wait until those there are have their answers."""
