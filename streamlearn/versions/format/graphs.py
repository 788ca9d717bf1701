"""Graphs: folders of files, stored once under the hash of what is in them, and shared by versions."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from streamlearn.errors import BadRecord, FileMissing, FileTaken, Oversize, UsageError, VersionDefect
from streamlearn.struct_decoder import from_json
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store, Stored
from streamlearn.versions.store.layout import graph_folder

__all__ = ["check_graph", "get_graph", "graph_id_of", "put_graph"]

_INDEX = "graph.json"
_INDEX_BYTES_MAX = 16 << 20
_FILE_BYTES_MAX = 4 << 30
_CHUNK_BYTES = 1 << 20
# Of a file's path in the folder, and of one step of it: what Linux takes, with room for the folder's own path.
_NAME_BYTES_MAX, _STEP_BYTES_MAX = 1_000, 255


class _GraphFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a graph.

    Attributes:
        name: Its path in the folder.
        stored: Where it is in the graph's folder of the store.
        bytes: Its size.
        sha256: Its digest.
    """

    name: Annotated[str, Meta(min_length=1, max_length=1_000)]
    stored: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\Z", max_length=200)]
    bytes: Annotated[int, Meta(ge=0, le=_FILE_BYTES_MAX)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _Index(Struct, frozen=True, forbid_unknown_fields=True):
    """All files of a graph, by name; written last."""

    files: Annotated[tuple[_GraphFile, ...], Meta(max_length=100_000)]


def graph_id_of(folder: Path) -> str:
    """The id of a graph: a hash over names and contents of its files, in the order of names.

    Args:
        folder: The folder; empty folders within it do not count.

    Raises:
        UsageError: There is no file in it, or something that is no plain file.
    """
    return _id({name: _digest(file) for name, file in _files(folder).items()})


def put_graph(store: Store, model: str, folder: Path) -> str:
    """Store a folder; one that is there already is not written again.

    TensorFlow writes a random number into `fingerprint.pb` of each SavedModel; without that file, which nobody needs to
    load it, the same functions made by the same steps are the same graph.

    Args:
        store: Where to.
        model: Whose graph it is.
        folder: The folder.

    Returns:
        Its id.

    Raises:
        UsageError: There is no file in it, or something that is no plain file.
        StoreError: The store refuses.
    """
    files = _files(folder)
    graph_id = _id({name: _digest(file) for name, file in files.items()})
    place = graph_folder(model, graph_id)
    if store.exists(f"{place}/{_INDEX}"):
        return graph_id
    found = []
    for name, file in files.items():
        stored = _stored(store, place, file)
        found.append(_GraphFile(name, stored.path.removeprefix(f"{place}/"), stored.bytes, stored.sha256))
    if _id({one.name: one.sha256 for one in found}) != graph_id:
        message = f"{folder} changed while it was being stored"
        raise UsageError(message, help="store it again when it is complete")
    try:
        store.create(f"{place}/{_INDEX}", msgspec.json.encode(_Index(tuple(found))))
    except FileTaken:
        # The same graph, by someone else: of the same id, so of the same files.
        return graph_id
    return graph_id


def get_graph(store: Store, model: str, graph_id: str, folder: Path) -> None:
    """Bring a graph into a folder, which appears whole.

    Args:
        store: Where from.
        model: Whose graph it is.
        graph_id: Which.
        folder: Where to; nothing may be there.

    Raises:
        VersionDefect: The graph is not there, or not what its id says.
        UsageError: There is something in the place of the folder.
    """
    place = graph_folder(model, graph_id)
    index = _read_index(store, place, graph_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for one in index.files:
            target = scratch / one.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_content(store, f"{place}/{one.stored}", one))
        # A rename takes the place of an empty folder, and of nothing else.
        scratch.rename(folder)
    except FileExistsError:
        raise _occupied(folder) from None
    except OSError as error:
        if folder.exists():
            raise _occupied(folder) from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_graph(store: Store, model: str, graph_id: str) -> Iterator[tuple[str, int, VersionDefect | None]]:
    """Read all files of a graph and keep none of them.

    Returns:
        Of its index, and then of each file: where it is, its bytes, and what is wrong with it.
    """
    place = graph_folder(model, graph_id)
    path = f"{place}/{_INDEX}"
    try:
        index = _read_index(store, place, graph_id)
    except VersionDefect as error:
        yield path, 0, error
        return
    yield path, store.size(path) or 0, None
    for one in index.files:
        stored = f"{place}/{one.stored}"
        try:
            _content(store, stored, one)
        except VersionDefect as error:
            yield stored, one.bytes, error
        else:
            yield stored, one.bytes, None


def _files(folder: Path) -> Mapping[str, Path]:
    found = {
        file.relative_to(folder).as_posix(): file
        for file in sorted(folder.rglob("*"))
        if file.is_symlink() or not file.is_dir()
    }
    odd = [name for name, file in found.items() if file.is_symlink() or not file.is_file()]
    if odd or not found:
        message = f"{folder} has {f'{odd[0]}, which is not a plain file' if odd else 'no files'}"
        raise UsageError(message, help="give a folder of plain files, such as a SavedModel")
    return found


def _id(digests: Mapping[str, str]) -> str:
    whole = hashlib.sha256()
    for name, sha256 in sorted((name.encode(), sha256) for name, sha256 in digests.items()):
        whole.update(len(name).to_bytes(8, "little") + name + bytes.fromhex(sha256))
    return whole.hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _stored(store: Store, place: str, file: Path) -> Stored:
    with file.open("rb") as opened, store.writer(f"{place}/file", ".bin") as writer:
        while chunk := opened.read(_CHUNK_BYTES):
            writer.write(chunk)
        return writer.finish()


def _read_index(store: Store, place: str, graph_id: str) -> _Index:
    path = f"{place}/{_INDEX}"
    try:
        index = from_json(store.read(path, bytes_max=_INDEX_BYTES_MAX), _Index)
    except FileMissing:
        raise defective(path, "missing_file", "the graph does not exist") from None
    except (msgspec.DecodeError, Oversize) as error:
        raise defective(path, "corrupted", f"cannot decode the index of a graph: {error}") from None
    found = _id({one.name: one.sha256 for one in index.files})
    if found != graph_id:
        raise defective(path, "corrupted", f"its files make graph {found}, not {graph_id}")
    before = [""]
    # Sorted by their steps, so that a file is followed by one that takes it for a folder.
    for steps in sorted(one.name.split("/") for one in index.files):
        if steps[: len(before)] == before or not _is_file(steps):
            raise defective(path, "corrupted", f"a file is named {'/'.join(steps)!r:.200}")
        before = steps
    return index


def _is_file(steps: list[str]) -> bool:
    """Whether any file system can hold a file of this path."""
    sizes = [len(step.encode()) for step in steps]
    is_short = max(sizes) <= _STEP_BYTES_MAX and sum(sizes) + len(sizes) <= _NAME_BYTES_MAX
    return is_short and not {"", ".", ".."} & set(steps) and not any("\0" in step for step in steps)


def _content(store: Store, path: str, one: _GraphFile) -> memoryview:
    try:
        return store.read(path, bytes_max=one.bytes, sha256=one.sha256)
    except FileMissing:
        raise defective(path, "missing_file", f"no file of {one.bytes} bytes was found") from None
    except (BadRecord, Oversize) as error:
        size = store.size(path)
        is_short = size is not None and size < one.bytes
        raise defective(path, "truncated" if is_short else "corrupted", error.message) from None


def _occupied(folder: Path) -> UsageError:
    return UsageError(f"{folder} exists already", help="give a path that does not exist")
