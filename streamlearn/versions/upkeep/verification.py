"""Verify: reads every file and verdict of versions, compares digests, checks the contents, and reports all defects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.errors import VersionDefect
from streamlearn.table import Changes
from streamlearn.versions.format.chain import Chain
from streamlearn.versions.format.fetch import fetch, in_order
from streamlearn.versions.format.graphs import check_graph
from streamlearn.versions.format.library_files import check_library, check_vectors
from streamlearn.versions.format.log import Log
from streamlearn.versions.format.manifest import MODEL_KINDS, PARTS, FileEntry, FileKind, VersionRef
from streamlearn.versions.format.pieces import check_pieces, read_tensors
from streamlearn.versions.format.row_files import read_gone, read_rows
from streamlearn.versions.format.scratch import Progress, record_of
from streamlearn.versions.format.shard_files import UpkeepGathered, no_upkeep
from streamlearn.versions.format.verdict import read_verdict
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store
from streamlearn.versions.upkeep.vector_owners import ownerless_vectors

__all__ = ["NotFinite", "Verification", "verify"]

_ITEM_CHECKS: dict[FileKind, Callable[[Mapping[str, Any], str], None]] = {
    "library": check_library,
    "vectors": check_vectors,
}


@dataclass(frozen=True)
class NotFinite:
    """NaN or infinite numbers in one table or tensor of one version.

    Attributes:
        path: The version's folder.
        kind: The kind of file: serving reads `rows`, training continues from `optimizer`.
        name: The table or the tensor.
        key: The smallest key of such a row; None for a tensor.
    """

    path: str
    kind: FileKind
    name: str
    count: int
    key: int | None = None

    @property
    def said(self) -> str:
        """A description in words."""
        where = "" if self.key is None else f", the first in the row of key {self.key}"
        return f"{self.count} of {self.kind} of {self.name!r} are NaN or infinite{where}"


@dataclass(frozen=True)
class Verification:
    """The versions, files and bytes read, all defects by path, and NaN or infinite numbers in intact files."""

    versions: tuple[int, ...]
    files: int
    bytes: int
    defects: tuple[VersionDefect, ...]
    not_finite: tuple[NotFinite, ...] = ()


# Checks files and their contents.
_Check: TypeAlias = Callable[["_Files"], list[NotFinite]]


@dataclass(frozen=True)
class _Files:
    """Files of one version that are checked together."""

    store: Store
    link: Committed
    entries: list[FileEntry]
    check: _Check

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    def read(self) -> Iterator[tuple[FileEntry, memoryview]]:
        for entry in self.entries:
            yield entry, self._fetch(entry)

    def verify(self) -> tuple[list[VersionDefect], list[NotFinite]]:
        """Return all defects, and numbers that are not finite; after the first defect, try to read every file."""
        try:
            return [], self.check(self)
        except VersionDefect as first:
            defects = {first.message: first}
            for entry in self.entries:
                try:
                    self._fetch(entry)
                except VersionDefect as error:
                    defects[error.message] = error
            return list(defects.values()), []

    def _fetch(self, entry: FileEntry) -> memoryview:
        return fetch(self.store, self.link.folder, entry, bytes_max=self.store.loading.file_bytes_max)


def verify(
    store: Store,
    model: str,
    version: int | None = None,
    *,
    everything: bool = False,
    progress: Progress | None = None,
) -> Verification:
    """Read the chain of a version, by default of the newest, from end to end.

    With `everything`: read every committed version, even outside the history, and every graph that one names. A few
    files are read at once (`fetch_threads`), and none is kept. Numbers that are NaN or infinite are no defects: such a
    version is as it was written, and the judge decides about it. Duplicate keys in one version are not detected here;
    staging refuses them. `progress` takes the bytes read and the bytes to read.

    Raises:
        StoreUnreachable: The store did not answer, which proves nothing about the files.
    """
    defects: list[VersionDefect] = []
    links = _all(store, model, defects) if everything else _chain(store, model, version, defects)
    for link in links:
        try:
            read_verdict(store, link.folder)
        except VersionDefect as error:
            defects.append(error)
    jobs = [job for link in links for job in _jobs(store, link)]
    files = sum(len(job.entries) for job in jobs)
    done, size = 0, sum(job.bytes for job in jobs)
    not_finite: list[NotFinite] = []
    for job, (wrong, numbers) in in_order(jobs, lambda job: (job, job.verify()), threads=store.loading.fetch_threads):
        defects += wrong
        not_finite += numbers
        done += job.bytes
        if progress is not None:
            progress(done, size)
    defects += ownerless_vectors(store, links)
    for graph in sorted({graph for link in links for graph in link.manifest.graphs}):
        for _, graph_bytes, defect in check_graph(store, model, graph):
            files, done = files + 1, done + graph_bytes
            defects += [] if defect is None else [defect]
            if progress is not None:
                progress(done, max(size, done))
    versions = tuple(sorted({link.manifest.version for link in links}))
    found = {(error.path, error.message): error for error in defects}
    return Verification(versions, files, done, tuple(found[key] for key in sorted(found)), _merged(not_finite))


def _chain(store: Store, model: str, version: int | None, defects: list[VersionDefect]) -> list[Committed]:
    try:
        return list(Chain.find(store, model, version).links)
    except VersionDefect as error:
        defects.append(error)
        return []


def _all(store: Store, model: str, defects: list[VersionDefect]) -> list[Committed]:
    """Return every version with a readable manifest; adds defects of the others, and of refs between versions."""
    log = Log(store, model)
    links: list[Committed] = []
    for folder in log.folders:
        try:
            link = log.read(folder)
        except VersionDefect as error:
            defects.append(error)
            continue
        links += [] if link is None else [link]
    if not links:
        defects.append(defective(model, "missing", f"{store.url} has no committed version of model {model!r}"))
        return []
    # Readers need the newest version next, so its chain must be complete.
    _chain(store, model, None, defects)
    refs = {(link.manifest.version, link.manifest.run): link.ref for link in links}
    for link in links:
        defects += _wrong_refs(link, refs)
    return links


def _wrong_refs(link: Committed, refs: dict[tuple[int, int], VersionRef]) -> Iterator[VersionDefect]:
    """The refs of a manifest with a wrong digest. A version that is absent may have been removed on purpose."""
    manifest = link.manifest
    for verb, ref in (("follows", manifest.parent), ("has the content of", manifest.content_of)):
        actual = None if ref is None else refs.get((ref.version, ref.run))
        if ref is not None and actual is not None and actual != ref:
            message = f"it {verb} version {ref.version} with sha256 {ref.sha256}, which has {actual.sha256}"
            yield defective(link.folder, "foreign", message)


def _jobs(store: Store, link: Committed) -> Iterator[_Files]:
    manifest = link.manifest
    optimizers = {(entry.table, entry.shard, entry.number): entry for entry in manifest.of_kind("optimizer")}
    for entry in manifest.of_kind("rows"):
        optimizer = optimizers.get((entry.table, entry.shard, entry.number))
        yield _Files(store, link, [entry] if optimizer is None else [entry, optimizer], _check_rows)
    for entry in manifest.of_kind("gone"):
        yield _Files(store, link, [entry], _check_rows)
    shards: dict[tuple[str | None, int], list[FileEntry]] = {}
    for entry in manifest.of_kind("upkeep"):
        shards.setdefault((entry.table, entry.shard), []).append(entry)
    for entries in shards.values():
        yield _Files(store, link, entries, _check_upkeep)
    for kind in (*MODEL_KINDS, "predictions"):
        if of_kind := manifest.of_kind(kind):
            yield _Files(store, link, of_kind, _check_pieces)
    for kind, check in _ITEM_CHECKS.items():
        if of_items := manifest.of_kind(kind):
            yield _Files(store, link, of_items, partial(_check_items, check))


def _check_rows(files: _Files) -> list[NotFinite]:
    folder = files.link.folder
    entry, data = next(read := files.read())
    assert entry.table is not None  # or the manifest was refused
    record = record_of(files.link.manifest, entry.table)
    if entry.kind == "gone":
        for _ in read_gone(record, entry, data, folder):
            pass
        return []
    # As serving reads them: rounded rows may be infinite where training rows are finite.
    not_finite = [_not_finite_rows(folder, "rows", rows) for rows in read_rows(record, entry, data, None, folder)]
    if (optimizer := next(read, None)) is not None:
        for rows in read_rows(record, entry, data, optimizer, folder):
            state = replace(rows, rows=rows.rows[:, :0]) if record.row_type == "float32" else rows
            not_finite.append(_not_finite_rows(folder, "optimizer", state))
    return [numbers for numbers in not_finite if numbers is not None]


def _check_pieces(files: _Files) -> list[NotFinite]:
    folder, kind, not_finite = files.link.folder, files.entries[0].kind, list[NotFinite]()

    def check(name: str, tensor: npt.NDArray[Any]) -> None:
        # Of predictions, NaN says that no node scored a row.
        numbers = None if kind == "predictions" else _not_finite_tensor(folder, kind, name, tensor)
        not_finite.extend([] if numbers is None else [numbers])

    check_pieces(files.read(), folder, check)
    return not_finite


def _check_items(check: Callable[[Mapping[str, Any], str], None], files: _Files) -> list[NotFinite]:
    check(read_tensors(files.read(), files.link.folder), files.link.folder)
    return []


def _check_upkeep(files: _Files) -> list[NotFinite]:
    gathered = UpkeepGathered((0, PARTS), no_upkeep())
    gathered.add([(files.entries[0], list(files.read()))], files.link.folder)
    return []


def _not_finite_rows(path: str, kind: FileKind, changes: Changes) -> NotFinite | None:
    """Find the numbers in rows that are not finite; None if all are finite."""
    count, is_bad = 0, np.zeros(len(changes), np.bool_)
    for numbers in (changes.rows, changes.scales, changes.state):
        if numbers is None or numbers.dtype.kind != "f":
            continue
        finite = np.isfinite(numbers).reshape(len(changes), -1)
        if not finite.all():
            count += finite.size - int(np.count_nonzero(finite))
            is_bad |= ~finite.all(axis=1)
    return NotFinite(path, kind, changes.table, count, int(changes.keys[is_bad].min())) if count else None


def _not_finite_tensor(path: str, kind: FileKind, name: str, numbers: npt.NDArray[Any]) -> NotFinite | None:
    """Find the numbers in a tensor, or in a part of it, that are not finite; None if all are finite."""
    if numbers.dtype.kind not in "fc":
        return None
    count = len(numbers) - int(np.count_nonzero(np.isfinite(numbers)))
    return NotFinite(path, kind, name, count) if count else None


def _merged(findings: Iterable[NotFinite]) -> tuple[NotFinite, ...]:
    """Merge the findings of each table and tensor of a version, in the order of their names."""
    by_name: dict[tuple[str, str, str], NotFinite] = {}
    for finding in findings:
        name = (finding.path, finding.kind, finding.name)
        count, keys = finding.count, [finding.key]
        if name in by_name:
            count, keys = count + by_name[name].count, [*keys, by_name[name].key]
        by_name[name] = NotFinite(*name, count, min((key for key in keys if key is not None), default=None))
    return tuple(by_name[name] for name in sorted(by_name))
