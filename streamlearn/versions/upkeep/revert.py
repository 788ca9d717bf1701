"""Revert: a new version with the content of an older one, written from files alone. The log only grows.

The difference between the newest version and the older one is written as a delta: rows as the older one had them, and
newer keys as gone. So nodes that stage it and trainers that continue from it need no special case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import UsageError
from streamlearn.table import Changes
from streamlearn.versions.format.chain import Chain
from streamlearn.versions.format.library_files import library_in
from streamlearn.versions.format.manifest import PARTS, Cut, Head, Manifest, Skip
from streamlearn.versions.format.scratch import Progress, Shard, scan_table, shards_in, upkeep_at
from streamlearn.versions.format.shard_files import no_upkeep
from streamlearn.versions.format.writer import Committed, VersionWriter
from streamlearn.versions.pointer.deletion import OBEYED as DELETED
from streamlearn.versions.pointer.deletion import Deletions, in_force
from streamlearn.versions.pointer.request import OBEYED
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.settings import ScanSettings, checked
from streamlearn.versions.upkeep.difference import TableComparison

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
    scan: ScanSettings | None = None,
    progress: Progress | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Committed:
    """Commit a version after the newest one, with the content of an older one.

    Rows, optimizer state and use, upkeep, dense weights and their optimizer, marks, golden requests, the library of
    items, positions, the watermark, the graph and metrics are the older version's. Skips are never lost: those of the
    newest version and the given ones are added to the older one's. `requests_obeyed` never falls. Rows that operators
    had deleted since do not come back, and predictions that wait stay those of the newest version.

    `to` is the version with the content; the newest is allowed, to add skips. `run` is the fencing number of the
    writer. By default `version` is the newest one's number plus one. `metrics` replace the older version's, by name: to
    obey a request, set `requests_obeyed` to its number. `progress` takes the number of parts done and of all parts,
    over all tables.

    Raises:
        UsageError: The number does not follow the newest version's.
        VersionDefect: There is no such version, a chain is damaged, or the run is older than the newest version's.
        FileTaken: Another writer has committed that version of that run.
        Oversize: A single part does not fit into `scan_bytes_max`.
    """
    memory = checked(scan or ScanSettings())
    newest = Chain.find(store, model)
    store.signatures.check_can_sign(newest.manifest)
    target = Chain.find(store, model, to)
    was, number = target.manifest, newest.version + 1 if version is None else version
    if number <= newest.version:
        message = f"version {number} of {model!r} cannot follow version {newest.version}, the newest"
        raise UsageError(message, help="give a number after it, or none")
    # An old version may name no labels, although the history has named them since.
    named = newest.manifest if was.labels is None else was
    head = Head(
        model=model, run=run, version=number, kind="revert", parent=newest.ref, fingerprint=named.fingerprint,
        labels=named.labels, windows=was.windows, tables=was.tables, content_of=target.ref,
        origin=newest.manifest.origin,
    )  # fmt: skip
    writer = VersionWriter(store, head)
    deletions = Deletions(store, model).all()
    deleted = in_force(deletions, was.metrics.get(DELETED, 0.0), was.watermark_ms)
    scanned = partial(scan_table, (target, newest), scan=memory, progress=progress)
    for shard in shards_in(was):
        changes = (
            _back(older, newer, deleted) for record in was.tables for older, newer in scanned(record.name, shard.parts)
        )
        writer.add_rows(changes, shard=shard.number, parts=shard.parts)
    _add_upkeep(writer, target, newest)
    if (items := library_in(store, target.links)) is not None:
        writer.add_library(items)
    writer.copy_model(target.head)
    all_skips = tuple(dict.fromkeys((*was.skips, *newest.manifest.skips, *skips)))
    all_metrics = _metrics(was, newest.manifest) | dict(metrics or {})
    if deletions:
        all_metrics[DELETED] = float(deletions[-1].seq)
    cut = Cut(
        positions=was.positions,
        watermark_ms=was.watermark_ms,
        skips=all_skips,
        graph=was.graph,
        metrics=all_metrics,
        retrieval=was.retrieval,
    )
    return writer.finish(cut, clock=clock)


def _back(older: Changes, newer: Changes, deleted: Mapping[str, Sequence[str]]) -> Changes:
    """The changes that turn the newer rows into the older ones, without deleted keys."""
    comparison = TableComparison.of(newer, older)
    at = np.concatenate([comparison.created, comparison.changed[1]])
    gone = newer.keys[comparison.gone]
    if texts := deleted.get(older.table):
        keys = np.array([int(text, 16) for text in texts], np.uint64)
        at, gone = at[~np.isin(older.keys[at], keys)], np.union1d(gone, newer.keys[np.isin(newer.keys, keys)])
    return older.select(at, gone)


def _add_upkeep(writer: VersionWriter, target: Chain, newest: Chain) -> None:
    """Write the older version's upkeep; an empty one if it had none and a later version has."""
    for record in writer.head.tables:
        was = list(upkeep_at(target, record.name))
        is_known = any(file.table == record.name for link in newest.links for file in link.manifest.of_kind("upkeep"))
        if not was and is_known:
            was = [(Shard((0, 1), (0, PARTS)), no_upkeep())]
        for shard, upkeep in was:
            writer.add_upkeep(record.name, upkeep, shard=shard.number, parts=shard.parts)


def _metrics(was: Manifest, newest: Manifest) -> dict[str, float]:
    """The older version's metrics, with the highest `requests_obeyed`, so that no request is obeyed again."""
    obeyed = [manifest.metrics[OBEYED] for manifest in (was, newest) if OBEYED in manifest.metrics]
    return was.metrics | ({OBEYED: max(obeyed)} if obeyed else {})
