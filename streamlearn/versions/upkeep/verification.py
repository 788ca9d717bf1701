"""Verify: every file and verdict of versions read, digests compared, insides looked at; all that is wrong is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy.typing as npt

from streamlearn.errors import VersionDefect
from streamlearn.versions.format.chain import Chain
from streamlearn.versions.format.copies import MODEL_KINDS
from streamlearn.versions.format.fetch import fetch, in_order
from streamlearn.versions.format.graphs import check_graph
from streamlearn.versions.format.log import Log
from streamlearn.versions.format.manifest import PARTS, FileEntry, VersionRef
from streamlearn.versions.format.not_finite import NotFinite, merged, not_finite_rows, not_finite_tensor
from streamlearn.versions.format.pieces import check_pieces
from streamlearn.versions.format.row_files import read_gone, read_rows
from streamlearn.versions.format.scratch import Progress, record_of
from streamlearn.versions.format.shard_files import UpkeepGathered, no_upkeep
from streamlearn.versions.format.verdict import read_verdict
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.settings import LoadSettings, checked

__all__ = ["Found", "Verified", "verify"]


@dataclass(frozen=True)
class Found:
    """Something that is wrong.

    Attributes:
        path: The file or folder.
        defect: What it is, by the name that `VersionDefect` has it under.
        message: The same in words, with values.
        help: What to do about it.
    """

    path: str
    defect: str
    message: str
    help: str = ""

    @classmethod
    def of(cls, error: VersionDefect) -> Found:
        """What an error says."""
        return cls(error.path, error.defect, error.message, error.help)


@dataclass(frozen=True)
class Verified:
    """What was looked at.

    Attributes:
        versions: Versions, by number.
        files: Files that were read.
        bytes: Of those.
        defects: All that is wrong, by path.
        not_finite: Numbers that are NaN or infinite, in files that are as they were written.
    """

    versions: tuple[int, ...]
    files: int
    bytes: int
    defects: tuple[Found, ...]
    not_finite: tuple[NotFinite, ...] = ()


_Look: TypeAlias = Callable[[list[FileEntry]], list[NotFinite]]


@dataclass(frozen=True)
class _CheckJob:
    """Files that are looked at together, and how; it gives what is wrong, and numbers that are not finite."""

    files: int
    bytes: int
    look: Callable[[], tuple[list[VersionDefect], list[NotFinite]]]


def verify(
    store: Store,
    model: str,
    version: int | None = None,
    *,
    everything: bool = False,
    limits: LoadSettings | None = None,
    progress: Progress | None = None,
) -> Verified:
    """Read versions from end to end.

    A few files are read at once (`fetch_threads`), and none is kept. Numbers that are NaN or infinite are named apart
    from defects: such a version is what was written, and the judge's matter. Whether a key is twice in one version
    is not looked at; staging refuses such a version.

    Args:
        store: Where they are.
        model: The model.
        version: Read the whole chain of this version; of the newest by default.
        everything: Read every version that is committed, also those that are of no history, and each graph they name.
        limits: Limits of reading.
        progress: Told after each file how many bytes are read, and of how many.

    Raises:
        StoreUnreachable: The store did not answer; that says nothing of the files.
    """
    reading = checked(limits or store.loading)
    found: list[VersionDefect] = []
    links = _all(store, model, reading, found) if everything else _chain(store, model, version, reading, found)
    found += _judged(store, links)
    jobs = [job for link in links for job in _jobs(store, link, reading)]
    graphs = sorted({link.manifest.graph for link in links if link.manifest.graph is not None})
    files = sum(job.files for job in jobs)
    done, size = 0, sum(job.bytes for job in jobs)
    lost: list[NotFinite] = []
    for job, (wrong, not_finite) in in_order(jobs, lambda job: (job, job.look()), threads=reading.fetch_threads):
        found += wrong
        lost += not_finite
        done += job.bytes
        if progress is not None:
            progress(done, size)
    for graph in graphs:
        for _, graph_bytes, error in check_graph(store, model, graph):
            files, done = files + 1, done + graph_bytes
            found += [] if error is None else [error]
            if progress is not None:
                progress(done, max(size, done))
    numbers = sorted({link.manifest.version for link in links})
    said = {(error.path, error.message): Found.of(error) for error in found}
    return Verified(tuple(numbers), files, done, tuple(said[key] for key in sorted(said)), merged(lost))


def _chain(
    store: Store, model: str, version: int | None, limits: LoadSettings, found: list[VersionDefect]
) -> list[Committed]:
    try:
        return list(Chain.find(store, model, version, settings=limits).links)
    except VersionDefect as error:
        found.append(error)
        return []


def _all(store: Store, model: str, limits: LoadSettings, found: list[VersionDefect]) -> list[Committed]:
    """Every version with a manifest that can be read; what is wrong with the others, and between them."""
    log = Log(store, model, limits)
    links: list[Committed] = []
    for folder in log.folders:
        try:
            one = log.read(folder)
        except VersionDefect as error:
            found.append(error)
            continue
        links += [] if one is None else [one]
    if not links:
        found.append(defective(model, "missing", f"{store.url} has no committed version of model {model!r}"))
        return []
    # The newest version is what everybody reads next, so its chain is to be whole.
    _chain(store, model, None, limits, found)
    by_place = {(one.manifest.version, one.manifest.run): one.ref for one in links}
    for one in links:
        found += _untied(one, by_place)
    return links


def _untied(link: Committed, by_place: dict[tuple[int, int], VersionRef]) -> Iterator[VersionDefect]:
    """What is named by a digest it does not have. What is not there may have been swept."""
    manifest = link.manifest
    for what, ref in (("follows", manifest.parent), ("has the content of", manifest.content_of)):
        known = None if ref is None else by_place.get((ref.version, ref.run))
        if ref is not None and known is not None and known != ref:
            said = f"it {what} version {ref.version} with sha256 {ref.sha256}, which has {known.sha256}"
            yield defective(link.folder, "foreign", said)


def _judged(store: Store, links: list[Committed]) -> Iterator[VersionDefect]:
    """What is wrong with verdicts."""
    for link in links:
        try:
            read_verdict(store, link.folder)
        except VersionDefect as error:
            yield error


def _jobs(store: Store, link: Committed, limits: LoadSettings) -> Iterator[_CheckJob]:
    manifest = link.manifest
    beside = {(one.table, one.shard, one.number): one for one in manifest.of_kind("optimizer")}

    def job(entries: list[FileEntry], look: _Look) -> _CheckJob:
        return _CheckJob(
            len(entries), sum(one.bytes for one in entries), lambda: _looked(store, link, entries, limits, look)
        )

    for entry in manifest.of_kind("rows"):
        other = beside.get((entry.table, entry.shard, entry.number))
        yield job([entry] if other is None else [entry, other], lambda files: _rows(store, link, files, limits))
    for entry in manifest.of_kind("gone"):
        yield job([entry], lambda files: _rows(store, link, files, limits))
    shards: dict[tuple[str | None, int], list[FileEntry]] = {}
    for entry in manifest.of_kind("upkeep"):
        shards.setdefault((entry.table, entry.shard), []).append(entry)
    for files in shards.values():
        yield job(files, lambda files: _upkeep(store, link, files, limits))
    for kind in MODEL_KINDS:
        if of_kind := manifest.of_kind(kind):
            yield job(of_kind, lambda files: _pieces(store, link, files, limits))


def _looked(
    store: Store,
    link: Committed,
    entries: list[FileEntry],
    limits: LoadSettings,
    look: _Look,
) -> tuple[list[VersionDefect], list[NotFinite]]:
    """What is wrong with files; where one cannot be read, with each of them."""
    try:
        return [], look(entries)
    except VersionDefect as first:
        found = {first.message: first}
        for entry in entries:
            try:
                fetch(store, link.folder, entry, bytes_max=limits.file_bytes_max)
            except VersionDefect as error:
                found[error.message] = error
        return list(found.values()), []


def _read(
    store: Store, link: Committed, files: Iterable[FileEntry], limits: LoadSettings
) -> Iterator[tuple[FileEntry, memoryview]]:
    for entry in files:
        yield entry, fetch(store, link.folder, entry, bytes_max=limits.file_bytes_max)


def _rows(store: Store, link: Committed, files: list[FileEntry], limits: LoadSettings) -> list[NotFinite]:
    entry, data = next(found := _read(store, link, files, limits))
    assert entry.table is not None  # or the manifest was refused
    record = record_of(link.manifest, entry.table)
    if entry.kind == "gone":
        for _ in read_gone(record, entry, data, link.folder):
            pass
        return []
    # As serving reads them: rounded ones may be infinite where training's are not.
    lost = [not_finite_rows(link.folder, "rows", one) for one in read_rows(record, entry, data, None, link.folder)]
    if (beside := next(found, None)) is not None:
        for one in read_rows(record, entry, data, beside, link.folder):
            state = replace(one, rows=one.rows[:, :0]) if record.row_type == "float32" else one
            lost.append(not_finite_rows(link.folder, "optimizer", state))
    return [one for one in lost if one is not None]


def _pieces(store: Store, link: Committed, files: list[FileEntry], limits: LoadSettings) -> list[NotFinite]:
    kind, lost = files[0].kind, list[NotFinite]()

    def see(name: str, numbers: npt.NDArray[Any]) -> None:
        one = not_finite_tensor(link.folder, kind, name, numbers)
        lost.extend([] if one is None else [one])

    check_pieces(_read(store, link, files, limits), link.folder, see)
    return lost


def _upkeep(store: Store, link: Committed, files: list[FileEntry], limits: LoadSettings) -> list[NotFinite]:
    gathered = UpkeepGathered((0, PARTS), no_upkeep())
    gathered.add([(files[0], list(_read(store, link, files, limits)))], link.folder)
    return []
