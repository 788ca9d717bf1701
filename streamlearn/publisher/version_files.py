"""VersionFiles: writes the files and the manifest of a sealed version. It does not decide when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
from msgspec import UNSET, structs

from streamlearn.clock import Clock
from streamlearn.errors import EpochOver, FileMissing, PushUnsure, RunOver, ShardNotReady, UsageError, VersionDefect
from streamlearn.features.retrieval import TOWERS
from streamlearn.ps import PsClient
from streamlearn.publisher.cut_state import CutState
from streamlearn.publisher.figures import metric_figures, row_figures, tensor_figures
from streamlearn.publisher.meters import Meters
from streamlearn.versions import Chain, Committed, Head, Store, VersionWriter
from streamlearn.versions.format.fetch import fetch
from streamlearn.versions.format.manifest import FileEntry, Manifest
from streamlearn.versions.format.record import read_signed
from streamlearn.versions.format.row_files import read_gone, read_rows
from streamlearn.versions.pointer.fence import Fence
from streamlearn.versions.store.layout import MANIFEST_NAME, version_folders

__all__ = ["TRAINER_ERRORS", "VersionFiles", "newest_chain", "number_max"]

# After these errors no cut can succeed until the trainer restores its shards or ends.
TRAINER_ERRORS = (RunOver, EpochOver, PushUnsure, ShardNotReady, UsageError)


class VersionFiles:
    """Writes versions to the store that the client's shards write to."""

    def __init__(self, client: PsClient, store: Store, *, meters: Meters, clock: Clock) -> None:
        self._client, self._store, self._meters, self._clock = client, store, meters, clock

    def write(self, head: Head, noted: CutState, learned_rows: int, fence: Fence) -> Committed:
        """Write a sealed version, its manifest last, after a check that its run is not over.

        `learned_rows` is the number of rows learned from since its parent.

        Raises:
            CutFailed: A shard could not write.
            StoreError: The store refuses; `find` tells whether the manifest was written nevertheless.
            RunOver: A newer run has taken over.
        """
        with self._meters.stage("export"):
            files = self._client.export(head)
        with self._meters.stage("write"):
            writer = VersionWriter(self._store, head)
            if noted.dense:
                writer.add_dense(noted.dense)
            if noted.dense_optimizer:
                writer.add_dense_optimizer(noted.dense_optimizer)
            if noted.marks:
                writer.add_marks(noted.marks)
            if noted.golden:
                writer.add_golden(noted.golden)
            if noted.predictions is not None:
                writer.add_predictions(noted.predictions.tensors())
            of_retrieval: Mapping[str, float] = {}
            if noted.library is not None:
                writer.add_library(noted.library.tensors)
                if noted.library.vectors is not None:
                    with self._meters.stage("derive"):
                        changed = _changed_keys(self._store, head, files, TOWERS)
                        writer.add_vectors(noted.library.vectors(head.version, changed))
                        of_retrieval = noted.library.metrics()
            figures = row_figures(self._store, head, files)
            metrics = metric_figures(noted.cut.metrics) | tensor_figures(noted.dense) | figures
            metrics |= of_retrieval
            metrics["learned_rows"] = float(learned_rows)
            fence.check(head.run)
            record = UNSET if noted.library is None else noted.library.record
            cut = structs.replace(noted.cut, metrics=metrics, retrieval=record)
            return writer.finish(cut, files, clock=self._clock)

    def find(self, head: Head) -> Committed | None:
        """Return the version if its manifest is in the store, in case the store's answer to `write` was lost."""
        try:
            return Committed(head.folder, *read_signed(self._store, f"{head.folder}/{MANIFEST_NAME}", Manifest))
        except FileMissing:
            return None

    def sweep(self, head: Head) -> None:
        """Remove the files of an abandoned version, so that a full disk does not stay full.

        Files that a shard writes later stay as orphans. A committed version is not touched.
        """
        if self._store.exists(f"{head.folder}/{MANIFEST_NAME}"):
            return
        for entry in self._store.entries(head.folder):
            folder = f"{head.folder}/{entry.name}"
            if entry.is_folder:
                for file in self._store.entries(folder):
                    self._store.remove(f"{folder}/{file.name}")


def newest_chain(store: Store, model: str) -> Chain | None:
    """The chain of the newest version of a model; None before the first."""
    try:
        return Chain.find(store, model)
    except VersionDefect as error:
        if error.defect == "missing":
            return None
        raise


def number_max(store: Store, model: str) -> int:
    """The highest version number of any folder, committed or not, of any run."""
    return max((folder.version for folder in version_folders(store, model)), default=0)


def _changed_keys(store: Store, head: Head, files: Iterable[FileEntry], table: str) -> npt.NDArray[np.uint64]:
    """Return the keys of a table's rows that a version changes or removes, from the files that shards wrote."""
    record = next(record for record in head.tables if record.name == table)
    keys = [np.zeros(0, np.uint64)]
    for entry in files:
        if entry.table == table and entry.kind in ("rows", "gone"):
            data = fetch(store, head.folder, entry, bytes_max=store.loading.file_bytes_max)
            if entry.kind == "rows":
                keys += [np.array(changes.keys) for changes in read_rows(record, entry, data, None, head.folder)]
            else:
                keys += [np.array(gone.gone) for gone in read_gone(record, entry, data, head.folder)]
    return np.unique(np.concatenate(keys))
