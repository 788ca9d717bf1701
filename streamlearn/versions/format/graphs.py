"""Graphs: folders of files, stored once under the hash of their contents, and shared by versions."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from streamlearn.errors import FileMissing, FileTaken, Oversize, UsageError, VersionDefect
from streamlearn.struct_decoder import from_json
from streamlearn.versions.format.fetch import fetch_exact
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store, Stored
from streamlearn.versions.store.layout import graph_folder

__all__ = ["check_graph", "get_graph", "graph_id_of", "put_graph", "whole_folder"]

_INDEX = "graph.json"
_INDEX_BYTES_MAX = 16 << 20
_FILE_BYTES_MAX = 4 << 30
_CHUNK_BYTES = 1 << 20
# Bounds of a file's path in the folder and of each of its names: Linux's limits, with room for the folder's own path.
_PATH_BYTES_MAX, _NAME_BYTES_MAX = 1_000, 255


class _GraphFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a graph: `name` is its path in the folder, `stored` its path in the graph's folder of the store."""

    name: Annotated[str, Meta(min_length=1, max_length=1_000)]
    stored: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\Z", max_length=200)]
    bytes: Annotated[int, Meta(ge=0, le=_FILE_BYTES_MAX)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _Index(Struct, frozen=True, forbid_unknown_fields=True):
    """All files of a graph, by name; written last."""

    files: Annotated[tuple[_GraphFile, ...], Meta(max_length=100_000)]


def graph_id_of(folder: Path) -> str:
    """Return the id of a graph, a hash over names and contents of its files; raises `UsageError` like `put_graph`."""
    return _id({name: _digest(file) for name, file in _files(folder).items()})


def put_graph(store: Store, model: str, folder: Path) -> str:
    """Store a folder unless it is stored already, and return its id.

    TensorFlow writes a random number into `fingerprint.pb` of each SavedModel. Without that file, which loading does
    not need, the same functions made by the same steps are the same graph.

    Raises:
        UsageError: The folder has no file, or something other than plain files.
        StoreError: The store refused a file.
    """
    files = _files(folder)
    graph_id = _id({name: _digest(file) for name, file in files.items()})
    root = graph_folder(model, graph_id)
    if store.exists(f"{root}/{_INDEX}"):
        return graph_id
    entries = []
    for name, file in files.items():
        stored = _copy_in(store, root, file)
        entries.append(_GraphFile(name, stored.path.removeprefix(f"{root}/"), stored.bytes, stored.sha256))
    if _id({entry.name: entry.sha256 for entry in entries}) != graph_id:
        message = f"{folder} changed while it was being stored"
        raise UsageError(message, help="store it again when it is complete")
    # If another process stored it meanwhile, it has the same id and so the same files.
    with suppress(FileTaken):
        store.create(f"{root}/{_INDEX}", msgspec.json.encode(_Index(tuple(entries))))
    return graph_id


def get_graph(store: Store, model: str, graph_id: str, folder: Path) -> None:
    """Copy a graph into a folder that does not exist yet, and that appears whole.

    Raises:
        VersionDefect: The graph is missing, or does not match its id.
        UsageError: The folder exists.
    """
    root = graph_folder(model, graph_id)
    index = _read_index(store, root, graph_id)
    with whole_folder(folder) as scratch:
        for entry in index.files:
            target = scratch / entry.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_content(store, root, entry))


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill, which then appears whole in this place; raises `UsageError` if something is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield scratch
        # A rename replaces an empty folder, and nothing else.
        scratch.rename(folder)
    except OSError as error:
        if isinstance(error, FileExistsError) or folder.exists():
            message = f"{folder} exists already"
            raise UsageError(message, help="give a path that does not exist") from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_graph(store: Store, model: str, graph_id: str) -> Iterator[tuple[str, int, VersionDefect | None]]:
    """Read all files of a graph without keeping them, and yield for its index and each file: path, bytes, defect."""
    root = graph_folder(model, graph_id)
    path = f"{root}/{_INDEX}"
    try:
        index = _read_index(store, root, graph_id)
    except VersionDefect as error:
        yield path, 0, error
        return
    yield path, store.size(path) or 0, None
    for entry in index.files:
        defect = None
        try:
            _content(store, root, entry)
        except VersionDefect as error:
            defect = error
        yield f"{root}/{entry.stored}", entry.bytes, defect


def _files(folder: Path) -> Mapping[str, Path]:
    files = {
        file.relative_to(folder).as_posix(): file
        for file in sorted(folder.rglob("*"))
        if file.is_symlink() or not file.is_dir()
    }
    odd = [name for name, file in files.items() if file.is_symlink() or not file.is_file()]
    if odd or not files:
        message = f"{folder} has {f'{odd[0]}, which is not a plain file' if odd else 'no files'}"
        raise UsageError(message, help="give a folder of plain files, such as a SavedModel")
    return files


def _id(digests: Mapping[str, str]) -> str:
    whole = hashlib.sha256()
    for name, sha256 in sorted((name.encode(), sha256) for name, sha256 in digests.items()):
        whole.update(len(name).to_bytes(8, "little") + name + bytes.fromhex(sha256))
    return whole.hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _copy_in(store: Store, root: str, file: Path) -> Stored:
    with file.open("rb") as opened, store.writer(f"{root}/file", ".bin") as writer:
        while chunk := opened.read(_CHUNK_BYTES):
            writer.write(chunk)
        return writer.finish()


def _read_index(store: Store, root: str, graph_id: str) -> _Index:
    path = f"{root}/{_INDEX}"
    try:
        index = from_json(store.read(path, bytes_max=_INDEX_BYTES_MAX), _Index)
    except FileMissing:
        raise defective(path, "missing_file", "the graph does not exist") from None
    except (msgspec.DecodeError, Oversize) as error:
        raise defective(path, "corrupted", f"cannot decode the index of a graph: {error}") from None
    actual_id = _id({entry.name: entry.sha256 for entry in index.files})
    if actual_id != graph_id:
        raise defective(path, "corrupted", f"its files make graph {actual_id}, not {graph_id}")
    previous = [""]
    # In sorted order, a path that uses an earlier file as a folder comes right after that file.
    for names in sorted(entry.name.split("/") for entry in index.files):
        if names[: len(previous)] == previous or not _is_path(names):
            raise defective(path, "corrupted", f"a file is named {'/'.join(names)!r:.200}")
        previous = names
    return index


def _is_path(names: list[str]) -> bool:
    """Return whether every file system can hold a file at this path."""
    sizes = [len(name.encode()) for name in names]
    is_short = max(sizes) <= _NAME_BYTES_MAX and sum(sizes) + len(sizes) <= _PATH_BYTES_MAX
    return is_short and not {"", ".", ".."} & set(names) and not any("\0" in name for name in names)


def _content(store: Store, root: str, entry: _GraphFile) -> memoryview:
    return fetch_exact(store, f"{root}/{entry.stored}", entry.bytes, entry.sha256)
