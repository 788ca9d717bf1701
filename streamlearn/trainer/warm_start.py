"""Warm start: the first version of a model with what another one learned, as far as it is of use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from streamlearn.errors import UsageError, VersionDefect
from streamlearn.features import labels_differ
from streamlearn.publisher import Noted
from streamlearn.table import Changes
from streamlearn.trainer.learner import Learner
from streamlearn.versions import Chain, Committed, Head, Store, VersionWriter, load_tensors
from streamlearn.versions.format.manifest import PARTS, TableRecord
from streamlearn.versions.format.scratch import Scratch
from streamlearn.versions.store.settings import ScanSettings

__all__ = ["Carried", "carry", "source_of"]


@dataclass(frozen=True)
class Carried:
    """What of another model's version is the beginning of this one.

    Attributes:
        model: Its name.
        version: Its number.
        rows: By table, how many rows were carried over.
        fresh: By table, why it begins empty.
        weights: Dense weights that were carried over.
        fresh_weights: Dense weights that begin anew.
    """

    model: str
    version: int
    rows: Mapping[str, int]
    fresh: Mapping[str, str]
    weights: tuple[str, ...]
    fresh_weights: tuple[str, ...]

    @property
    def said(self) -> str:
        """It in one sentence.

        Examples:
            >>> Carried("shop", 2, {"main": 304}, {"text": "its dim is 6 here, 4 there"}, ("a", "b"), ("c",)).said
            'version 2 of shop: 304 rows of main, 2 of 3 dense weights; text begins empty (its dim is 6 here, 4 there)'
        """
        rows = [f"{count:,} rows of {name}" for name, count in self.rows.items()]
        weights = f"{len(self.weights)} of {len(self.weights) + len(self.fresh_weights)} dense weights"
        fresh = "".join(f"; {name} begins empty ({why})" for name, why in self.fresh.items())
        return f"version {self.version} of {self.model}: {', '.join([*rows, weights])}{fresh}"


def source_of(store: Store, text: str) -> Chain:
    """The version that MODEL, or MODEL:VERSION, names.

    Raises:
        UsageError: The number is none, or the store has no such version.
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


def carry(store: Store, source: Chain, head: Head, noted: Noted, learner: Learner) -> tuple[Carried, Committed]:
    """Commit the first version of a model with rows and weights of another's.

    Keys are hashed with their slot's name: rows of slots that both have are found again, those of slots that are new
    begin fresh, and those of slots that are gone are asked for by nobody.

    Args:
        store: Where both are.
        source: The other's version.
        head: The version that is written.
        noted: What it has beside rows; its dense weights are what `learner` begins with.
        learner: Takes the weights over.

    Raises:
        UsageError: Labels the two share stand in other places: what was learned of a label goes by its place.
    """
    theirs, mine = source.manifest.labels, head.labels
    if theirs is not None and mine is not None and any(one != other for one, other in zip(theirs, mine, strict=False)):
        message = labels_differ(f"version {source.version} of {source.model!r}", theirs, mine)
        help = "labels are matched by position: add labels at the end, or train without --from"
        raise UsageError(message, help=help)
    there = {one.name: one for one in source.manifest.tables}
    fresh = {one.name: why for one in head.tables if (why := _why_fresh(one, there.get(one.name)))}
    rows = {one.name: 0 for one in head.tables if one.name not in fresh}
    writer = VersionWriter(store, head)
    writer.add_rows(_rows(source, rows))
    dense = load_tensors(store, source.head, "dense")
    weights = tuple(name for name, shape in learner.shapes.items() if name in dense and dense[name].shape == shape)
    learner.begin_with(dense)
    noted = replace(noted, dense=learner.dense())
    writer.add_dense(noted.dense)
    writer.add_dense_optimizer(noted.dense_optimizer)
    writer.add_marks(noted.marks)
    committed = writer.finish(noted.cut)
    fresh_weights = tuple(name for name in learner.shapes if name not in weights)
    return Carried(source.model, source.version, dict(rows), fresh, weights, fresh_weights), committed


def _rows(source: Chain, rows: dict[str, int]) -> Iterator[Changes]:
    """All rows of some tables, which are counted on the way."""
    for name in rows:
        for _, (changes,) in Scratch([source], name, ScanSettings(), source.store.loading).exports((0, PARTS)):
            rows[name] += len(changes.keys)
            yield changes


def _why_fresh(mine: TableRecord, other: TableRecord | None) -> str:
    if other is None:
        return "the other model does not have this table"
    for name in ("dim", "initial_range", "seed", "optimizer", "tick_ms"):
        if getattr(mine, name) != getattr(other, name):
            return f"its {name} is {getattr(mine, name)} here, but {getattr(other, name)} there"
    return ""
