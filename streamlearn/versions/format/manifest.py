"""Manifest: what a version is, and every file of it. It knows the bytes of the manifest, and no store."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from streamlearn.table import RowType
from streamlearn.table.options import Optimizer
from streamlearn.versions.format.record import Digest, VersionRef, decode_record, encode_record
from streamlearn.versions.store.layout import RUN_MAX, VERSION_MAX, Shape, version_folder

__all__ = [
    "FORMAT",
    "KINDS",
    "PARTS",
    "Cut",
    "FileEntry",
    "FileKind",
    "Head",
    "Kind",
    "Manifest",
    "OriginSkip",
    "Position",
    "Skip",
    "TableRecord",
    "TimeSkip",
    "VersionRef",
    "decode_manifest",
    "encode_manifest",
]

FORMAT = 1
PARTS = 1024

Kind = Literal["base", "delta", "revert"]
FileKind = Literal["rows", "optimizer", "gone", "upkeep", "dense", "dense_optimizer", "marks", "golden"]

KINDS: tuple[FileKind, ...] = get_args(FileKind)

_Text = Annotated[str, Meta(min_length=1, max_length=200)]
_Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z", max_length=64)]
_Model = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]*\Z", max_length=64)]
_Path = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*\Z", max_length=400)]
_Version = Annotated[int, Meta(ge=1, le=VERSION_MAX)]
_Run = Annotated[int, Meta(ge=0, le=RUN_MAX)]
_Size = Annotated[int, Meta(ge=0, le=1 << 62)]
_Ms = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
_Part = Annotated[int, Meta(ge=0, le=PARTS)]


class _Strict(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all parts of a manifest have in common: an unknown field is refused."""


class Position(_Strict, frozen=True, kw_only=True):
    """Up to where a partition has been learned from.

    Attributes:
        topic: URL or name of the topic.
        topic_id: Its id, which another topic of the same name does not have.
        partition: The partition.
        offset: The first offset that is not wholly learned.
    """

    topic: Annotated[str, Meta(min_length=1, max_length=1_000)]
    topic_id: _Text
    partition: Annotated[int, Meta(ge=0, le=1 << 31)]
    offset: _Size


class OriginSkip(_Strict, frozen=True, kw_only=True, tag_field="kind", tag="origin"):
    """Samples that are not learned from, by where their events came from.

    Attributes:
        topic_id: The events topic.
        partition: Its partition.
        begin: The first offset.
        end: The offset after the last.
    """

    topic_id: _Text
    partition: Annotated[int, Meta(ge=0, le=1 << 31)]
    begin: _Size
    end: _Size


class TimeSkip(_Strict, frozen=True, kw_only=True, tag_field="kind", tag="time"):
    """Samples that are not learned from, by the event time of their impressions.

    Attributes:
        begin_ms: The first millisecond.
        end_ms: The millisecond after the last.
    """

    begin_ms: _Ms
    end_ms: _Ms


Skip = OriginSkip | TimeSkip


class TableRecord(_Strict, frozen=True, kw_only=True):
    """What must agree between the tables that wrote a version and those that read it.

    Attributes:
        name: Its name.
        dim: Numbers of a row.
        initial_range: Range of rows that were never stored.
        seed: Seed of rows that were never stored.
        row_type: How its rows are in the files.
        optimizer: How its rows learn; null for a table that only serves.
        tick_ms: The length of a tick of its time.
    """

    name: _Name
    dim: Annotated[int, Meta(ge=1, le=4096)]
    initial_range: Annotated[float, Meta(ge=0)]
    seed: Annotated[int, Meta(ge=0)] = 0
    row_type: RowType = "float32"
    optimizer: Optimizer | None = None
    tick_ms: Annotated[int, Meta(gt=0)] = 60_000


class FileEntry(_Strict, frozen=True, kw_only=True):
    """One file of a version.

    Attributes:
        kind: What is in it.
        path: Where it is, from the version's folder on.
        rows: Records in it.
        bytes: Its size.
        sha256: Its digest.
        table: The table it is of; null for what is of the whole model.
        shard: The shard that wrote it.
        shards: How many shards there were.
        parts: The parts the shard owned: the first, and the one after the last.
        number: Its place among the files of its kind, table and shard.
        count: How many files of its kind and table the shard wrote.
    """

    kind: FileKind
    path: _Path
    rows: _Size
    bytes: _Size
    sha256: Digest
    table: _Name | None = None
    shard: Annotated[int, Meta(ge=0, lt=PARTS)] = 0
    shards: Annotated[int, Meta(ge=1, le=PARTS)] = 1
    parts: tuple[_Part, _Part] = (0, PARTS)
    number: Annotated[int, Meta(ge=0, lt=1_000_000)] = 0
    count: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class Head(_Strict, frozen=True, kw_only=True):
    """What is known of a version before its files are written; all shards are given the same.

    Attributes:
        model: The application's name.
        run: The fencing number of the run that writes it.
        version: Its number.
        kind: `base`: everything there is. `delta`: what changed since the parent. `revert`: a delta whose content
            is an older version's.
        parent: The committed version before it; null for the first.
        stands_for: For a base that compaction made: the version whose whole form it is. Its own version and run
            are the same, and its parent is that one's parent.
        content_of: For a revert, and for a base that stands for one: the older version whose content it is.
        labels: The names of the labels, in the order of scores and marks; null where a version of before names none.
        fingerprint: Of the model: `App.model_fingerprint`. Without labels it is that of the features.
        windows: Id of the window settings.
        tables: The tables, in their order.
    """

    model: _Model
    run: _Run
    version: _Version
    kind: Kind
    parent: VersionRef | None
    fingerprint: _Text
    windows: _Text
    tables: Annotated[tuple[TableRecord, ...], Meta(max_length=1_000)]
    stands_for: VersionRef | None = None
    content_of: VersionRef | None = None
    labels: Annotated[tuple[_Name, ...], Meta(max_length=1_000)] | None = None

    @property
    def shape(self) -> Shape:
        """Whether its folder is among the deltas or the bases."""
        return "bases" if self.kind == "base" else "deltas"

    @property
    def folder(self) -> str:
        """Where it is in the store."""
        return version_folder(self.model, self.shape, self.version, self.run)


class Cut(_Strict, frozen=True, kw_only=True):
    """What is known of a version when everything of it is written.

    Attributes:
        positions: Up to where topics have been learned from.
        watermark_ms: Event time up to which samples were complete; null before the first.
        skips: What is not learned from, now and in later versions.
        graph: Id of the graph that serves it; null for a version without one.
        metrics: Numbers by name.
    """

    positions: Annotated[tuple[Position, ...], Meta(max_length=100_000)] = ()
    watermark_ms: _Ms | None = None
    skips: Annotated[tuple[Skip, ...], Meta(max_length=10_000)] = ()
    graph: Digest | None = None
    metrics: Annotated[dict[_Text, float], Meta(max_length=10_000)] = {}


class Manifest(Head, frozen=True, kw_only=True):
    """A version: its `Head`, its `Cut`, and its files. That it is there means that the version is committed.

    Attributes:
        format: Of the manifest and the files; another one is refused.
        written_wall_ms: When it was written, by the wall clock of whoever did.
        positions: See `Cut`.
        watermark_ms: See `Cut`.
        skips: See `Cut`.
        graph: See `Cut`.
        metrics: See `Cut`.
        files: Every file.
        signature: Ed25519 over all bytes before this field, in hex; absent from versions that nobody signed. All
            other fields stand before it.
        check: The sha256 of all bytes before this field, which is the last.
    """

    written_wall_ms: _Ms
    files: Annotated[tuple[FileEntry, ...], Meta(max_length=1_000_000)]
    format: Annotated[int, Meta(ge=FORMAT, le=FORMAT)] = FORMAT
    positions: Annotated[tuple[Position, ...], Meta(max_length=100_000)] = ()
    watermark_ms: _Ms | None = None
    skips: Annotated[tuple[Skip, ...], Meta(max_length=10_000)] = ()
    graph: Digest | None = None
    metrics: Annotated[dict[_Text, float], Meta(max_length=10_000)] = {}
    signature: Annotated[str, Meta(pattern=r"^[0-9a-f]{128}\Z")] | UnsetType = UNSET
    check: Digest | UnsetType = UNSET

    def of_kind(self, kind: FileKind) -> list[FileEntry]:
        """Its files of one kind, in the order of table, shard and number."""
        found = [file for file in self.files if file.kind == kind]
        return sorted(found, key=lambda file: (file.table or "", file.shard, file.number))


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest; their sha256 is what the next version names it by."""
    return encode_record(manifest)


def decode_manifest(data: bytes | memoryview, path: str) -> Manifest:
    """Read a manifest.

    Args:
        data: Its bytes.
        path: Where they are from, for the error.

    Raises:
        VersionDefect: They are damaged, of another format, or no manifest.
    """
    return decode_record(data, Manifest, path, format=FORMAT)
