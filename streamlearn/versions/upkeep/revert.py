"""Revert: a new version whose content is an older one's, written from files alone. The log only grows.

What differs between the newest version and the older one is written as a delta: rows as the older one had them, and
keys that were not there as gone. So nodes that stage it and trainers that go on from it know of no special case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import UsageError
from streamlearn.table import Changes
from streamlearn.versions.format.chain import Chain
from streamlearn.versions.format.copies import MODEL_KINDS, copy_files
from streamlearn.versions.format.manifest import PARTS, Cut, Head, Manifest, Skip
from streamlearn.versions.format.scratch import Parts, Progress, Scratch, Shard, shards_in, upkeep_at
from streamlearn.versions.format.shard_files import no_upkeep
from streamlearn.versions.format.writer import Committed, VersionWriter
from streamlearn.versions.pointer.request import OBEYED
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.settings import FileSettings, LoadSettings, ScanSettings, checked
from streamlearn.versions.upkeep.table_diff import Compared

__all__ = ["write_revert"]


def write_revert(
    store: Store,
    model: str,
    *,
    to: int,
    run: int,
    version: int | None = None,
    skips: Sequence[Skip] = (),
    metrics: Mapping[str, float] | None = None,
    files: FileSettings | None = None,
    scan: ScanSettings | None = None,
    limits: LoadSettings | None = None,
    progress: Progress | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Committed:
    """Commit a version after the newest one, with the content of an older one.

    Rows, optimizer state and use, upkeep, dense weights and their optimizer, marks, golden requests, positions, the
    watermark, the graph and metrics are the older version's. Skips are never lost: those of the newest version stay,
    beside those of the older one and those that are given. Nor is what was obeyed: `requests_obeyed` does not fall.

    Args:
        store: Where the versions are.
        model: The model.
        to: The version whose content it is to have; the newest is allowed, to add skips.
        run: The fencing number of who writes it.
        version: Its number; the one after the newest by default.
        skips: What is not to be learned from any more.
        metrics: Numbers by name, in the place of the older version's; who obeys a request says so here by its number,
            as `requests_obeyed`.
        files: Limits of files that are written.
        scan: How much memory may be taken.
        limits: Limits of reading.
        progress: Told after every few parts how many are done, of all tables together.
        clock: When it is written.

    Raises:
        UsageError: The number does not follow the newest version's.
        VersionDefect: There is no such version, something of a chain is not what it is to be, or the run is older
            than the newest version's.
        FileTaken: Another writer has committed that version of that run.
        Oversize: Not even one part fits into `scan_bytes_max`.
    """
    reading, memory = checked(limits or store.loading), checked(scan or ScanSettings())
    newest = Chain.find(store, model, settings=reading)
    store.signatures.check_can_sign(newest.manifest)
    target = Chain.find(store, model, to, settings=reading)
    was, number = target.manifest, newest.version + 1 if version is None else version
    if number <= newest.version:
        message = f"version {number} of {model!r} cannot follow version {newest.version}, the newest"
        raise UsageError(message, help="give a number after it, or none")
    # A version of before names no labels; the history has had them since.
    named = newest.manifest if was.labels is None else was
    head = Head(
        model=model,
        run=run,
        version=number,
        kind="revert",
        parent=newest.ref,
        fingerprint=named.fingerprint,
        labels=named.labels,
        windows=was.windows,
        tables=was.tables,
        content_of=target.ref,
    )
    writer = VersionWriter(store, head, files)
    for shard in shards_in(was):
        changes = _changes((target, newest), shard.parts, memory, reading, progress)
        writer.add_rows(changes, shard=shard.number, parts=shard.parts)
    _add_upkeep(writer, target, newest, reading)
    copied = copy_files(store, target.head, head.folder, MODEL_KINDS, reading)
    cut = Cut(
        positions=was.positions,
        watermark_ms=was.watermark_ms,
        skips=_united(was.skips, newest.manifest.skips, tuple(skips)),
        graph=was.graph,
        metrics=_kept(was, newest.manifest) | dict(metrics or {}),
    )
    return writer.finish(cut, copied, clock=clock)


def _changes(
    chains: tuple[Chain, Chain], parts: Parts, scan: ScanSettings, limits: LoadSettings, progress: Progress | None
) -> Iterator[Changes]:
    names = [record.name for record in chains[0].manifest.tables]
    for number, name in enumerate(names):
        for done, (older, newer) in Scratch(chains, name, scan, limits).exports(parts):
            yield _back(older, newer)
            if progress is not None:
                before = len(names) * parts[0] + number * (parts[1] - parts[0])
                progress(before + done - parts[0], len(names) * PARTS)


def _back(older: Changes, newer: Changes) -> Changes:
    """What makes the newer rows the older ones."""
    found = Compared.of(newer, older)
    kept = np.concatenate([found.created, found.changed[1]])
    arrays: dict[str, Any] = {
        name: None if (array := getattr(older, name)) is None else array[kept]
        for name in ("rows", "scales", "state", "ticks", "counts")
    }
    return Changes(older.table, older.keys[kept], gone=newer.keys[found.gone], **arrays)


def _add_upkeep(writer: VersionWriter, target: Chain, newest: Chain, limits: LoadSettings) -> None:
    """All that was known at the older version; nothing, where nothing was yet and something has been since."""
    for record in writer.head.tables:
        was = list(upkeep_at(target, record.name, limits))
        is_known = any(file.table == record.name for link in newest.links for file in link.manifest.of_kind("upkeep"))
        if not was and is_known:
            was = [(Shard((0, 1), (0, PARTS)), no_upkeep())]
        for shard, upkeep in was:
            writer.add_upkeep(record.name, upkeep, shard=shard.number, parts=shard.parts)


def _kept(was: Manifest, newest: Manifest) -> dict[str, float]:
    """The older version's metrics, and that no request is to be obeyed again."""
    obeyed = [one.metrics[OBEYED] for one in (was, newest) if OBEYED in one.metrics]
    return was.metrics | ({OBEYED: max(obeyed)} if obeyed else {})


def _united(*skips: tuple[Skip, ...]) -> tuple[Skip, ...]:
    """All of them once, in the order they came."""
    found: list[Skip] = []
    for one in (skip for some in skips for skip in some):
        if one not in found:
            found.append(one)
    return tuple(found)
