"""Exchange: a version as a plain folder for any reader, and such a folder as the first version of a model."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import UNSET, Meta, Struct, UnsetType

from streamlearn.errors import BadRecord, UsageError, VersionDefect
from streamlearn.struct_decoder import from_json
from streamlearn.table import Changes
from streamlearn.table.foreign import npz_arrays
from streamlearn.versions.format.arrow import column, fixed_lists, plain, values, write_batch
from streamlearn.versions.format.chain import Chain
from streamlearn.versions.format.graphs import get_graph, graph_id_of, put_graph, whole_folder
from streamlearn.versions.format.library_files import check_library, check_vectors, library_in, vectors_in
from streamlearn.versions.format.loading import is_in_parts, load_bytes, load_tensors
from streamlearn.versions.format.log import Log
from streamlearn.versions.format.manifest import PARTS, Cut, Head, Manifest, RetrievalRecord, TableRecord
from streamlearn.versions.format.scratch import Parts, Progress, row_bytes, scan_table, table_of
from streamlearn.versions.format.writer import Committed, VersionWriter
from streamlearn.versions.pointer.request import OBEYED
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import version_folder
from streamlearn.versions.store.settings import ScanSettings, checked

__all__ = ["ExportedVersion", "export_version", "import_version"]

Array = npt.NDArray[Any]

_FORMAT = 1
_VERSION, _README, _DENSE, _GOLDEN, _TABLES, _GRAPH = (
    "version.json", "README.txt", "dense.npz", "golden.npz", "tables", "graph"
)  # fmt: skip
_LIBRARY, _VECTORS, _TOWERS = "library.npz", "vectors.npz", "user_tower"
_VERSION_BYTES_MAX = 16 << 20
# The initial rows, for readers of the folder without this package; a test runs this text.
_INITIAL = """\
  import numpy as np

  def initial_rows(keys, dim, initial_range, seed):
      def draw(seed, at):  # number `at` of the SplitMix64 sequence of `seed`; uint64, modulo 2**64
          value = seed + (at + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
          value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
          value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
          return value ^ (value >> np.uint64(31))

      keys = np.asarray(keys, np.uint64)[:, None]
      bits = draw(draw(np.uint64(seed), keys), np.arange((dim + 1) // 2, dtype=np.uint64))
      # Two numbers of 24 bits from each draw: from its low half and its high half.
      halves = np.stack([bits & np.uint64(0xFFFFFFFF), bits >> np.uint64(32)], axis=2).reshape(len(keys), -1)
      whole = (halves[:, :dim] >> np.uint64(8)).astype(np.int64) - 2**23
      return whole.astype(np.float32) * (np.float32(initial_range) * np.float32(2.0**-23))
"""
_BATCH_ROWS_MAX = 65_536


class _ExportedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the folder, and its digest."""

    path: Annotated[str, Meta(min_length=1, max_length=400)]
    bytes: Annotated[int, Meta(ge=0)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class ExportedVersion(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`version.json`: the description of an exported folder.

    Attributes:
        run: The run that wrote the version.
        fingerprint: The fingerprint of the model.
        windows: Id of the window settings.
        tables: The tables; rows in the folder are float32, even if `row_type` says otherwise.
        rows: Rows by table.
        watermark_ms: Event time up to which samples were complete.
        graph: Id of the graph in `graph/`; null if there is none.
        files: Tables, dense weights and golden requests, and the library of items if the version has one.
        labels: The names of the labels, in order; null if the version named none.
        retrieval: What finds items, whose graph is in `user_tower/`; missing if the application does not retrieve.
        format: The format of the folder.
    """

    model: str
    version: int
    run: int
    fingerprint: str
    windows: str
    tables: tuple[TableRecord, ...]
    rows: dict[str, int]
    watermark_ms: int | None
    metrics: dict[str, float]
    graph: str | None
    files: tuple[_ExportedFile, ...]
    labels: tuple[str, ...] | None = None
    retrieval: RetrievalRecord | UnsetType = UNSET
    format: Annotated[int, Meta(ge=_FORMAT, le=_FORMAT)] = _FORMAT


def export_version(
    store: Store,
    model: str,
    version: int | None,
    folder: Path,
    *,
    scan: ScanSettings | None = None,
    progress: Progress | None = None,
) -> ExportedVersion:
    """Write a version, or the newest one, as a folder that can be read without this package.

    Rows are those that are served, as float32. The folder lacks what only training needs: optimizer state, use, marks,
    predictions and positions. It appears as a whole, and must not exist before. `scan` limits the memory for rows;
    dense weights are held in memory. `progress` takes the number of parts done and of all parts, over all tables.

    Raises:
        VersionDefect: There is no such version, or it is damaged.
        UsageError: The folder exists.
    """
    memory = checked(scan or ScanSettings())
    chain = Chain.find(store, model, version)
    manifest = chain.manifest
    if folder.exists():
        message = f"{folder} exists already"
        raise UsageError(message, help="give a path that does not exist")
    with whole_folder(folder) as scratch:
        (scratch / _TABLES).mkdir()
        rows = {}
        for record in manifest.tables:
            scanned = scan_table([chain], record.name, scan=memory, progress=progress, training=False)
            path = scratch / _TABLES / f"{record.name}.arrow"
            rows[record.name] = _write_table(path, record, (changes for (changes,) in scanned))
        _write_arrays(scratch / _DENSE, load_tensors(store, chain.head))
        golden = load_bytes(store, chain.head, "golden")
        _write_arrays(scratch / _GOLDEN, {name: np.frombuffer(data, np.uint8) for name, data in golden.items()})
        items = {_LIBRARY: library_in(store, chain.links), _VECTORS: vectors_in(store, chain.links)}
        for name, arrays in items.items():
            if arrays is not None:
                _write_arrays(scratch / name, arrays)
        for name, graph_id in _graphs(manifest).items():
            get_graph(store, model, graph_id, scratch / name)
        exported = ExportedVersion(
            model=model, version=manifest.version, run=manifest.run, fingerprint=manifest.fingerprint,
            windows=manifest.windows, tables=manifest.tables, rows=rows, watermark_ms=manifest.watermark_ms,
            metrics=manifest.metrics, graph=manifest.graph, labels=manifest.labels, retrieval=manifest.retrieval,
            files=tuple(_described(scratch, _paths(manifest.tables, [name for name in items if items[name]]))),
        )  # fmt: skip
        (scratch / _README).write_text(_readme(exported))
        (scratch / _VERSION).write_bytes(msgspec.json.format(msgspec.json.encode(exported), indent=2) + b"\n")
    return exported


def import_version(
    store: Store,
    model: str,
    folder: Path,
    *,
    run: int | Callable[[], int] = 1,
    version: int = 1,
    scan: ScanSettings | None = None,
) -> Committed:
    """Make an exported folder the first version of a model that has none; `model` is its name in this store.

    Optimizer state starts fresh, rows count as never used, and there are no positions of topics.

    `run` is the fencing number of the writer, or takes one. It is called after all checks, because taking a number ends
    the previous run. `scan` limits the memory for rows; dense weights are held in memory.

    Raises:
        UsageError: The model has versions, or its name or a number is out of bounds.
        BadRecord: The folder is not an exported version, or was changed since.
        FileTaken: Another writer committed the first version meanwhile.
    """
    version_folder(model, "bases", version, 1 if callable(run) else run)  # refuses an invalid model, number or run
    store.signatures.check_can_sign()
    exported, memory = _read_version(folder), checked(scan or ScanSettings())
    newest = Log(store, model).newest()
    if newest is not None:
        message = f"model {model!r} in {store.url} already has versions, the newest is {newest.version}"
        raise UsageError(message, help="import under another name, or into another store")
    _check_files(folder, exported)
    items = _items(folder, exported)
    for name in _graphs(exported):
        put_graph(store, model, folder / name)
    number = run() if callable(run) else run
    head = Head(
        model=model, run=number, version=version, kind="base", parent=None, fingerprint=exported.fingerprint,
        labels=exported.labels, windows=exported.windows, tables=exported.tables,
    )  # fmt: skip
    writer = VersionWriter(store, head)
    writer.add_rows(_training_rows(folder, exported, memory))
    writer.add_dense(_arrays(folder / _DENSE))
    writer.add_golden({name: array.tobytes() for name, array in _arrays(folder / _GOLDEN).items()})
    if (of_library := items.get(_LIBRARY)) is not None:
        writer.add_library(of_library)
    if (vectors := items.get(_VECTORS)) is not None:
        writer.add_vectors(vectors)
    # The count of requests belongs to the other store; this store counts from the start.
    metrics = {name: value for name, value in exported.metrics.items() if name != OBEYED}
    cut = Cut(watermark_ms=exported.watermark_ms, graph=exported.graph, metrics=metrics, retrieval=exported.retrieval)
    return writer.finish(cut)


def _graphs(version: Manifest | ExportedVersion) -> dict[str, str]:
    """Return the ids of a version's graphs, by their folder."""
    retrieval = {} if isinstance(version.retrieval, UnsetType) else {_TOWERS: version.retrieval.graph}
    return retrieval if version.graph is None else {_GRAPH: version.graph} | retrieval


def _schema(record: TableRecord) -> pa.Schema:
    return pa.schema([plain("key", pa.uint64()), fixed_lists("row", pa.float32(), record.dim)], {"table": record.name})


def _write_table(path: Path, record: TableRecord, scanned: Iterable[Changes]) -> int:
    """Write rows as float32, sorted by key within each piece; returns their number."""
    schema, count = _schema(record), 0
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for changes in scanned:
            keys, rows, order = changes.keys, changes.floats(), np.argsort(changes.keys)
            for begin in range(0, len(keys), _BATCH_ROWS_MAX):
                at = order[begin : begin + _BATCH_ROWS_MAX]
                write_batch(writer, schema, [column(schema.field(0), keys[at]), column(schema.field(1), rows[at])])
            count += len(keys)
    return count


def _write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an `.npz` file; `numpy.savez` cannot write arrays with certain names."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


def _arrays(path: Path) -> dict[str, Array]:
    try:
        return npz_arrays(path)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise _damaged(path, f"not a file of arrays: {error}") from None


def _described(folder: Path, paths: Iterable[str]) -> Iterator[_ExportedFile]:
    for path in paths:
        with (folder / path).open("rb") as file:
            yield _ExportedFile(path, (folder / path).stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _paths(tables: Iterable[TableRecord], others: Container[str]) -> list[str]:
    of_items = [name for name in (_LIBRARY, _VECTORS) if name in others]
    return [*(f"{_TABLES}/{record.name}.arrow" for record in tables), _DENSE, _GOLDEN, *of_items]


def _read_version(folder: Path) -> ExportedVersion:
    path = folder / _VERSION
    try:
        with path.open("rb") as file:
            return from_json(file.read(_VERSION_BYTES_MAX), ExportedVersion)
    except (OSError, msgspec.DecodeError) as error:
        raise _damaged(path, f"cannot decode the description of the folder: {error}") from None


def _check_files(folder: Path, exported: ExportedVersion) -> None:
    """Check that all files exist and are unchanged."""
    named = {file.path: file for file in exported.files}
    expected = _paths(exported.tables, named)
    tables = sorted(record.name for record in exported.tables)
    if sorted(named) != sorted(expected) or sorted(exported.rows) != tables:
        raise _damaged(folder / _VERSION, f"it lists {sorted(named)}, expected {sorted(expected)}")
    try:
        actual = {file.path: file for file in _described(folder, expected)}
        graphs = {name: graph_id_of(folder / name) for name in _graphs(exported)}
    except OSError as error:
        raise _damaged(folder, f"{error.filename}: {error.strerror}") from None
    for path, file in named.items():
        if actual[path] != file:
            what = f"it has {actual[path].bytes} bytes of sha256 {actual[path].sha256}, not {file}"
            raise _damaged(folder / path, what)
    for name, graph_id in _graphs(exported).items():
        if graphs[name] != graph_id:
            raise _damaged(folder / name, f"it is graph {graphs[name]}, not {graph_id}")


def _items(folder: Path, exported: ExportedVersion) -> dict[str, dict[str, Array]]:
    """Return the library of items and their vectors, as far as the folder has them."""
    checks, items = {_LIBRARY: check_library, _VECTORS: check_vectors}, dict[str, dict[str, Array]]()
    for name in checks.keys() & {file.path for file in exported.files}:
        items[name] = _arrays(folder / name)
        try:
            checks[name](items[name], name)
        except VersionDefect as error:
            raise _damaged(folder / name, error.message) from None
    return items


def _training_rows(folder: Path, exported: ExportedVersion, scan: ScanSettings) -> Iterator[Changes]:
    """Yield rows as training continues from them, one range of parts after the other."""
    for record in exported.tables:
        training, rows = record.optimizer is not None, exported.rows[record.name]
        room = max(1, scan.scan_bytes_max // row_bytes(record, training=training))
        # A quarter more, because keys are spread over parts only roughly evenly.
        count = min(PARTS, -(-(rows + rows // 4) // room) or 1)
        ends = [PARTS * at // count for at in range(count + 1)]
        for begin, end in pairwise(ends):
            tables = table_of(record, rows, training=training)
            tables.stage(1, None, _exported_rows(folder, record, (begin, end)))
            yield from tables.changed(None, 1)


def _exported_rows(folder: Path, record: TableRecord, parts: Parts) -> Iterator[Changes]:
    """Yield the rows of a table's file that belong to these parts."""
    path = folder / _TABLES / f"{record.name}.arrow"
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
            if not reader.schema.equals(_schema(record), check_metadata=False):
                raise _damaged(path, f"its columns are {reader.schema.names}, expected those of {record.name!r}")
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                batch.validate(full=True)
                changes = Changes(record.name, *(values(array) for array in batch.columns))
                yield changes.select(is_in_parts(changes.keys, parts))
    except (pa.ArrowException, ValueError) as error:
        raise _damaged(path, f"not a table: {error}") from None


def _damaged(path: Path, what: str) -> BadRecord:
    return BadRecord(f"{path}: {what}", help="export the version again; nothing was imported")


def _readme(exported: ExportedVersion) -> str:
    counts = {name: f"{count} row{'' if count == 1 else 's'}" for name, count in exported.rows.items()}
    tables = "".join(
        f"  tables/{record.name}.arrow  {counts[record.name]} of {record.dim} numbers\n" for record in exported.tables
    )
    if _LIBRARY in {file.path for file in exported.files}:
        tables += f"  {_LIBRARY}  items: `key`, `id`, times and features; NAME[] and NAME$ cut the values of NAME\n"
    if _VECTORS in {file.path for file in exported.files}:
        tables += f"  {_VECTORS}  vectors of items: `key`, `row` (int8), and `scale`, by which each row is multiplied\n"
    graph = f"  {_GRAPH}/  the graph, a SavedModel folder; weights are its arguments\n" if exported.graph else ""
    if _TOWERS in _graphs(exported):
        graph += f"  {_TOWERS}/  the same for the vectors of users: its scores are the numbers of a vector\n"
    return f"""Version {exported.version} of the model {exported.model!r}, as it is served.

{tables}  {_DENSE}  dense weights by name: numpy.load("{_DENSE}")
  {_GOLDEN}  golden requests, as bytes: `samples`, a message of samples; `logits`, an .npy file
{graph}  {_VERSION}  what the version is: tables, features, metrics, and the sha256 of each file

Tables are Arrow IPC files with the columns `key` (uint64) and `row` (float32, a list of fixed length):

  import pyarrow as pa
  table = pa.ipc.open_file(pa.memory_map("tables/NAME.arrow")).read_all()

A key without a row has its initial row. It depends only on the key and on `seed` and `initial_range` of its table,
which {_VERSION} gives. Its numbers are float32, uniform from -initial_range to initial_range. This computes them to
the bit:

{_INITIAL}
Optimizer state, use of rows, marks and positions are not in this folder.
"""
