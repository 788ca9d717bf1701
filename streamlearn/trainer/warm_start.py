"""Warm start: writes the first version of a model from what another model has learned."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from streamlearn.errors import UsageError, VersionDefect
from streamlearn.features import labels_differ
from streamlearn.publisher import CutState
from streamlearn.table import Changes
from streamlearn.trainer.learner import Learner
from streamlearn.versions import Chain, Head, Store, VersionWriter, load_tensors
from streamlearn.versions.format.manifest import PARTS, TableRecord
from streamlearn.versions.format.scratch import Scratch
from streamlearn.versions.store.settings import ScanSettings

__all__ = ["Carried", "carry", "source_of"]


@dataclass(frozen=True)
class Carried:
    """What a model took over from another model's version."""

    model: str
    version: int
    rows: Mapping[str, int]  # by table, the number of rows carried over
    fresh: Mapping[str, str]  # by table, the reason why it starts empty
    weights: tuple[str, ...]  # the dense weights carried over
    fresh_weights: tuple[str, ...]  # the dense weights that start fresh

    @property
    def sentence(self) -> str:
        """The content as one sentence.

        Examples:
            >>> Carried("shop", 2, {"main": 304}, {"text": "its dim is 6"}, ("a", "b"), ("c",)).sentence
            'version 2 of shop: 304 rows of main, 2 of 3 dense weights; text begins empty (its dim is 6)'
        """
        rows = [f"{count:,} rows of {name}" for name, count in self.rows.items()]
        weights = f"{len(self.weights)} of {len(self.weights) + len(self.fresh_weights)} dense weights"
        fresh = "".join(f"; {name} begins empty ({why})" for name, why in self.fresh.items())
        return f"version {self.version} of {self.model}: {', '.join([*rows, weights])}{fresh}"


def source_of(store: Store, text: str) -> Chain:
    """Find the version that MODEL or MODEL:VERSION names.

    Raises:
        UsageError: The number is invalid, or the store has no such version.
        VersionDefect: The version cannot be read.
    """
    model, colon, version = text.partition(":")
    if colon and not version.isdecimal():
        message = f"{text!r} does not name a version"
        raise UsageError(message, help="write MODEL for its newest version, or MODEL:VERSION")
    try:
        return Chain.find(store, model, int(version) if colon else None)
    except VersionDefect as error:
        if error.defect != "missing":
            raise
        message = f"cannot begin with version {text!r}: {error.message}"
        help = (
            "the other model must be in this application's store: use the same versions.store for both, or "
            "copy the version with `streamlearn export` and `streamlearn import`"
        )
        raise UsageError(message, help=help) from error


def carry(store: Store, source: Chain, head: Head, noted: CutState, learner: Learner) -> Carried:
    """Commit the first version of a model with rows and weights of another model's version.

    Keys are hashed with their slot's name: slots of both models keep their rows, new slots start empty, and rows of
    removed slots are never read. `learner` takes over the weights, which replace the dense weights in `noted`. A shared
    label at another position raises a UsageError, since what was learned for a label belongs to its position.
    """
    source_labels, labels = source.manifest.labels, head.labels
    if source_labels is not None and labels is not None and any(map(operator.ne, source_labels, labels)):
        message = labels_differ(f"version {source.version} of {source.model!r}", source_labels, labels)
        help = "labels are matched by position: add labels at the end, or train without --from"
        raise UsageError(message, help=help)
    sources = {table.name: table for table in source.manifest.tables}
    fresh = {table.name: why for table in head.tables if (why := _why_fresh(table, sources.get(table.name)))}
    rows = {table.name: 0 for table in head.tables if table.name not in fresh}
    writer = VersionWriter(store, head)
    writer.add_rows(_rows(source, rows))
    dense = load_tensors(store, source.head, "dense")
    weights = tuple(name for name, shape in learner.shapes.items() if name in dense and dense[name].shape == shape)
    learner.begin_with(dense)
    noted = replace(noted, dense=learner.dense())
    writer.add_dense(noted.dense)
    writer.add_dense_optimizer(noted.dense_optimizer)
    writer.add_marks(noted.marks)
    writer.finish(noted.cut)
    fresh_weights = tuple(name for name in learner.shapes if name not in weights)
    return Carried(source.model, source.version, dict(rows), fresh, weights, fresh_weights)


def _rows(source: Chain, rows: dict[str, int]) -> Iterator[Changes]:
    """Yield all rows of some tables, and count them in `rows`."""
    for name in rows:
        for _, (changes,) in Scratch([source], name, ScanSettings(), source.store.loading).exports((0, PARTS)):
            rows[name] += len(changes.keys)
            yield changes


def _why_fresh(table: TableRecord, source: TableRecord | None) -> str:
    """Return why a table cannot take over the rows of the source's table; empty if it can."""
    if source is None:
        return "the other model does not have this table"
    for name in ("dim", "initial_range", "seed", "optimizer", "tick_ms"):
        if getattr(table, name) != getattr(source, name):
            return f"its {name} is {getattr(table, name)} here, but {getattr(source, name)} there"
    return ""
