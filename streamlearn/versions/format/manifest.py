"""Manifest: what a version is, and a list of its files. It knows the bytes of the manifest, and no store."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from streamlearn.table import RowType
from streamlearn.table.options import Optimizer
from streamlearn.versions.format.record import Digest, VersionRef, decode_record
from streamlearn.versions.store.layout import RUN_MAX, VERSION_MAX, Shape, version_folder

__all__ = [
    "FORMAT", "KINDS", "MODEL_KINDS", "PARTS", "Cut", "FileEntry", "FileKind", "Head", "Kind", "Manifest", "Origin",
    "OriginSkip", "Position", "RetrievalRecord", "Skip", "TableRecord", "TimeSkip", "VersionRef", "decode_manifest",
]  # fmt: skip

FORMAT = 1
PARTS = 1024

Kind = Literal["base", "delta", "revert"]
FileKind = Literal[
    "rows", "optimizer", "gone", "upkeep", "dense", "dense_optimizer", "marks", "golden", "predictions", "library"
]
KINDS: tuple[FileKind, ...] = get_args(FileKind)
MODEL_KINDS: tuple[FileKind, ...] = ("dense", "dense_optimizer", "marks", "golden")
"""Files of the whole model, complete in every version."""

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
    """The base of all parts of a manifest: unknown fields are refused."""


class Position(_Strict, frozen=True, kw_only=True, omit_defaults=True):
    """The learned position of a partition: `offset` is the first offset that is not fully learned.

    `topic` is a URL or a name; `topic_id` differs between topics of one name. `leader_epoch` is Kafka's leader epoch of
    the record before `offset`; -1 if it is unknown.
    """

    topic: Annotated[str, Meta(min_length=1, max_length=1_000)]
    topic_id: _Text
    partition: Annotated[int, Meta(ge=0, le=1 << 31)]
    offset: _Size
    leader_epoch: Annotated[int, Meta(ge=-1, lt=1 << 31)] = -1


class OriginSkip(_Strict, frozen=True, kw_only=True, tag_field="kind", tag="origin"):
    """Samples to skip, by the origin of their events: offsets from `begin` up to `end`, exclusive."""

    topic_id: _Text
    partition: Annotated[int, Meta(ge=0, le=1 << 31)]
    begin: _Size
    end: _Size


class TimeSkip(_Strict, frozen=True, kw_only=True, tag_field="kind", tag="time"):
    """Samples to skip, by the event time of their impressions: from `begin_ms` up to `end_ms`, exclusive."""

    begin_ms: _Ms
    end_ms: _Ms


Skip = OriginSkip | TimeSkip


class TableRecord(_Strict, frozen=True, kw_only=True):
    """The options in which the tables that write a version and those that read it must agree.

    Attributes:
        dim: Numbers in a row.
        initial_range: With `seed`: defines the rows that were never stored.
        row_type: The type of its rows in the files.
        optimizer: Null for a table that only serves.
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
        path: Its path in the version's folder.
        rows: Number of records.
        table: Its table; null for a file of the whole model.
        shard: The shard that wrote it, of `shards`.
        parts: The parts the shard owned: the first, and the one after the last.
        number: Its number among the `count` files of its kind, table and shard.
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


class RetrievalRecord(_Strict, frozen=True, kw_only=True):
    """What finds items with a version: its towers, and the table of its items' vectors.

    Attributes:
        graph: Id of the graph that makes the vectors of users.
        fingerprint: `App.retrieval_fingerprint`.
        label: The label whose positives are retrieved.
        dim: Numbers in a vector.
    """

    graph: Digest
    fingerprint: _Text
    label: _Name
    dim: Annotated[int, Meta(ge=4, le=512)]


class Origin(_Strict, frozen=True, kw_only=True):
    """The version of another model from which a model began.

    Attributes:
        model: The other model.
        version: Its version.
        clock_ms: The event time up to which that version had learned; null if it had learned nothing.
        is_relearned: Whether this model learned again what that version had learned.
    """

    model: _Model
    version: VersionRef
    clock_ms: _Ms | None = None
    is_relearned: bool = False


class Head(_Strict, frozen=True, kw_only=True):
    """The fields of a version that are known before its files are written; all shards get the same.

    Attributes:
        model: The application's name.
        run: The fencing number of the run that writes it.
        kind: `base`: the whole model. `delta`: the changes since the parent. `revert`: a delta with the content of an
            older version.
        parent: The committed version before it; null for the first.
        stands_for: For a base made by compaction: the delta that it replaces, with the same version, run and parent.
        content_of: For a revert, and for a base that stands for one: the older version whose content it has.
        labels: The names of the labels, in the order of scores and marks; null in versions of older releases.
        origin: Where the model began, if it replaces another; the same in all of its versions.
        fingerprint: `App.model_fingerprint`; without labels, the fingerprint of the features.
        windows: Id of the window settings.
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
    origin: Origin | UnsetType = UNSET

    @property
    def shape(self) -> Shape:
        """Whether it is stored as a delta or a base."""
        return "bases" if self.kind == "base" else "deltas"

    @property
    def folder(self) -> str:
        """Its folder in the store."""
        return version_folder(self.model, self.shape, self.version, self.run)


class Cut(_Strict, frozen=True, kw_only=True):
    """The fields of a version that are known when all of its files are written.

    Attributes:
        positions: The learned positions of topics.
        watermark_ms: Event time up to which samples were complete; null before the first.
        skips: Samples that this and later versions do not learn.
        graph: Id of the graph that serves it, if any.
        retrieval: What finds items, if the application retrieves.
    """

    positions: Annotated[tuple[Position, ...], Meta(max_length=100_000)] = ()
    watermark_ms: _Ms | None = None
    skips: Annotated[tuple[Skip, ...], Meta(max_length=10_000)] = ()
    graph: Digest | None = None
    metrics: Annotated[dict[_Text, float], Meta(max_length=10_000)] = {}
    retrieval: RetrievalRecord | UnsetType = UNSET


class Manifest(Head, frozen=True, kw_only=True):
    """A version: the fields of its `Head` and its `Cut`, and its files. The version is committed once this exists.

    Attributes:
        format: The format of the manifest and the files; others are refused.
        signature: Ed25519 over all bytes before this field, in hex; absent if unsigned. Only `check` follows it.
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
    retrieval: RetrievalRecord | UnsetType = UNSET
    signature: Annotated[str, Meta(pattern=r"^[0-9a-f]{128}\Z")] | UnsetType = UNSET
    check: Digest | UnsetType = UNSET

    @property
    def graphs(self) -> frozenset[str]:
        """The ids of all its graphs."""
        retrieval = () if isinstance(self.retrieval, UnsetType) else (self.retrieval.graph,)
        return frozenset(retrieval if self.graph is None else (self.graph, *retrieval))

    def of_kind(self, kind: FileKind) -> list[FileEntry]:
        """Return its files of one kind, in the order of table, shard and number."""
        files = [file for file in self.files if file.kind == kind]
        return sorted(files, key=lambda file: (file.table or "", file.shard, file.number))


def decode_manifest(data: bytes | memoryview, path: str) -> Manifest:
    """Decode a manifest; raises `VersionDefect` for any other bytes, with `path` in the error."""
    return decode_record(data, Manifest, path, format=FORMAT)
