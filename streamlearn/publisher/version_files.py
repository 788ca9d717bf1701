"""Writing: the files and the manifest of one version that is sealed. It does not know when, nor what comes of it."""

from __future__ import annotations

import hashlib

from msgspec import structs

from streamlearn.clock import Clock
from streamlearn.errors import CutFailed, FileMissing, VersionDefect
from streamlearn.ps import PsClient
from streamlearn.publisher.cut_state import Noted
from streamlearn.publisher.figures import metric_figures, row_figures, tensor_figures
from streamlearn.publisher.meters import Meters
from streamlearn.versions import Chain, Committed, Head, Store, VersionWriter
from streamlearn.versions.format.manifest import decode_manifest
from streamlearn.versions.pointer.fence import Fence
from streamlearn.versions.store.layout import MANIFEST_NAME, SHAPES, parse_folder, shape_folder
from streamlearn.versions.store.settings import FileSettings

__all__ = ["Writing", "cuts_failed", "newest_chain", "number_max"]

_MANIFEST_BYTES_MAX = 1 << 30


class Writing:
    """Writes versions.

    Args:
        client: Whose shards write the rows.
        store: Where to; the same one for the shards.
        files: Limits of files.
        meters: Where stages are timed.
        clock: When a version is written.
    """

    def __init__(self, client: PsClient, store: Store, files: FileSettings, *, meters: Meters, clock: Clock) -> None:
        self._client, self._store, self._files, self._meters, self._clock = client, store, files, meters, clock

    def write(self, head: Head, noted: Noted, learned_rows: int, fence: Fence) -> Committed:
        """Write a sealed version, its manifest last.

        Args:
            head: What the version is.
            noted: What the trainer gave.
            learned_rows: Rows learned from since its parent.
            fence: Asked just before the manifest whether the run still may.

        Raises:
            CutFailed: A shard could not write.
            StoreError: The store refuses; `found` tells whether the manifest is there all the same.
            RunOver: A newer run has taken over.
        """
        with self._meters.stage("export"):
            files = self._client.export(head)
        with self._meters.stage("write"):
            writer = VersionWriter(self._store, head, self._files)
            if noted.dense:
                writer.add_dense(noted.dense)
            if noted.dense_optimizer:
                writer.add_dense_optimizer(noted.dense_optimizer)
            if noted.marks:
                writer.add_marks(noted.marks)
            if noted.golden:
                writer.add_golden(noted.golden)
            figures = row_figures(self._store, head, files)
            metrics = metric_figures(noted.cut.metrics) | tensor_figures(noted.dense) | figures
            metrics["learned_rows"] = float(learned_rows)
            fence.check(head.run)
            return writer.finish(structs.replace(noted.cut, metrics=metrics), files, clock=self._clock)

    def found(self, head: Head) -> Committed | None:
        """The version, if its manifest is there: an answer of the store may have been lost.

        Raises:
            StoreError: The store does not tell.
        """
        path = f"{head.folder}/{MANIFEST_NAME}"
        try:
            data = self._store.read(path, bytes_max=_MANIFEST_BYTES_MAX)
        except FileMissing:
            return None
        manifest = decode_manifest(data, head.folder)
        self._store.signatures.check(data, path)
        return Committed(head.folder, manifest, hashlib.sha256(data).hexdigest())

    def sweep(self, head: Head) -> int:
        """Remove what was written of a version that was given up, so that a full disk does not stay full.

        What a shard still writes stays, and is an orphan; a version that is committed stays whole. Gives how many files
        went.
        """
        if self._store.exists(f"{head.folder}/{MANIFEST_NAME}"):
            return 0
        count = 0
        for entry in self._store.entries(head.folder):
            folder = f"{head.folder}/{entry.name}"
            if entry.is_folder:
                for file in self._store.entries(folder):
                    self._store.remove(f"{folder}/{file.name}")
                    count += 1
        return count


def newest_chain(store: Store, model: str) -> Chain | None:
    """The newest version of a model; None before the first."""
    try:
        return Chain.find(store, model)
    except VersionDefect as error:
        if error.defect == "missing":
            return None
        raise


def number_max(store: Store, model: str) -> int:
    """The highest number any folder of a version has, committed or not, of whatever run."""
    listed = ((shape, entry) for shape in SHAPES for entry in store.entries(shape_folder(model, shape)))
    found = (parse_folder(model, shape, entry.name) for shape, entry in listed)
    return max((one.version for one in found if one is not None), default=0)


def cuts_failed(failures: int, last: str) -> CutFailed:
    """The error of cuts that failed one after the other; `last` is the message of the last one."""
    message = f"{failures} cuts failed in a row; the last: {last}"
    help = (
        "see why the store or the shards refuse; nothing is lost: after a restart, training learns again from "
        "the samples after the newest version"
    )
    return CutFailed(message, help=help)
