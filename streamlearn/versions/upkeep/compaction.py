"""Compaction: a base that stands for a version, made from files alone, so that chains are short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import FileTaken
from streamlearn.table import Changes
from streamlearn.versions.format.chain import Chain
from streamlearn.versions.format.copies import MODEL_KINDS, copy_files
from streamlearn.versions.format.manifest import PARTS, Cut, Head, Manifest, VersionRef
from streamlearn.versions.format.scratch import Parts, Progress, Scratch, shards_in, upkeep_at
from streamlearn.versions.format.writer import VersionWriter
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.settings import FileSettings, LoadSettings, ScanSettings, checked

__all__ = ["Compacted", "compact", "cut_of", "head_like"]


@dataclass(frozen=True)
class Compacted:
    """What compaction did.

    Attributes:
        ref: The version that there is a base of now.
        folder: Where the base is.
        is_new: Whether it was written by this call; if not, there was one, or another compactor was first.
        rows: Rows written.
        bytes: Bytes of files written.
        wall_s: How long it took.
    """

    ref: VersionRef
    folder: str
    is_new: bool
    rows: int
    bytes: int
    wall_s: float


def compact(
    store: Store,
    model: str,
    upto: int | None = None,
    *,
    files: FileSettings | None = None,
    scan: ScanSettings | None = None,
    limits: LoadSettings | None = None,
    progress: Progress | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Compacted:
    """Write the base that stands for a version; chains of it and of later versions begin there then.

    Nothing of the version changes, and two who do it at once do no harm: one of the two is first.

    Args:
        store: Where the version is, and the base will be.
        model: The model.
        upto: The version; the newest by default.
        files: Limits of files that are written.
        scan: How much memory may be taken.
        limits: Limits of reading.
        progress: Told after every few parts how many are done, of all tables together.
        clock: What time is taken by.

    Raises:
        VersionDefect: There is no such version, or something of its chain is not what it is to be.
        Oversize: Not even one part fits into `scan_bytes_max`.
    """
    begin_s = clock.monotonic_s()
    reading = checked(limits or store.loading)
    chain = Chain.find(store, model, upto, settings=reading)
    store.signatures.check_can_sign(chain.manifest)
    if chain.manifest.kind == "base":
        return Compacted(chain.ref, chain.links[0].folder, False, 0, 0, clock.monotonic_s() - begin_s)
    writer = VersionWriter(store, head_like(chain.manifest, stands_for=chain.ref), files)
    for shard in shards_in(chain.manifest):
        writer.add_rows(
            _changes(chain, shard.parts, scan or ScanSettings(), reading, progress),
            shard=shard.number,
            parts=shard.parts,
        )
    for record in chain.manifest.tables:
        for shard, upkeep in upkeep_at(chain, record.name, reading):
            writer.add_upkeep(record.name, upkeep, shard=shard.number, parts=shard.parts)
    copied = copy_files(store, chain.head, writer.head.folder, MODEL_KINDS, reading)
    written = [*writer.entries, *copied]
    try:
        writer.finish(cut_of(chain.manifest), copied, clock=clock)
        is_new = True
    except FileTaken:
        # Another compactor was first; it read the same version, so its base is as good.
        Chain.find(store, model, chain.version, settings=reading)
        is_new = False
    rows = sum(entry.rows for entry in written if entry.kind == "rows") if is_new else 0
    size = sum(entry.bytes for entry in written) if is_new else 0
    return Compacted(chain.ref, writer.head.folder, is_new, rows, size, clock.monotonic_s() - begin_s)


def head_like(manifest: Manifest, *, stands_for: VersionRef) -> Head:
    """The head of a base that stands for a version."""
    said = {name: getattr(manifest, name) for name in Head.__struct_fields__}
    return Head(**(said | {"kind": "base", "stands_for": stands_for}))


def cut_of(manifest: Manifest) -> Cut:
    """What a version has learned, as it says itself."""
    return Cut(**{name: getattr(manifest, name) for name in Cut.__struct_fields__})


def _changes(
    chain: Chain, parts: Parts, scan: ScanSettings, limits: LoadSettings, progress: Progress | None
) -> Iterator[Changes]:
    names = [record.name for record in chain.manifest.tables]
    for number, name in enumerate(names):
        for done, (found,) in Scratch([chain], name, scan, limits).exports(parts):
            yield found
            if progress is not None:
                # Shards come in the order of their parts, and each has all tables.
                before = len(names) * parts[0] + number * (parts[1] - parts[0])
                progress(before + done - parts[0], len(names) * PARTS)
