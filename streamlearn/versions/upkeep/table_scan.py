"""Table scans: the rows of a table in one or two versions, some parts at a time, with progress over all tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streamlearn.table import Changes
from streamlearn.versions.format.chain import Chain
from streamlearn.versions.format.manifest import PARTS
from streamlearn.versions.format.scratch import Parts, Progress, Scratch
from streamlearn.versions.store.settings import LoadSettings, ScanSettings

__all__ = ["scan_table"]


def scan_table(
    chains: Sequence[Chain],
    table: str,
    parts: Parts = (0, PARTS),
    *,
    scan: ScanSettings,
    limits: LoadSettings,
    progress: Progress | None,
    training: bool = True,
) -> Iterator[tuple[Changes, ...]]:
    """Yield all rows of some parts of a table, of each version side by side.

    Progress is reported in parts of all tables. For that, callers scan the ranges of parts in order, and all tables of
    a range before the next range.
    """
    names = [record.name for record in chains[0].manifest.tables]
    before = len(names) * parts[0] + names.index(table) * (parts[1] - parts[0])
    for done, versions in Scratch(chains, table, scan, limits, training=training).exports(parts):
        yield versions
        if progress is not None:
            progress(before + done - parts[0], len(names) * PARTS)
