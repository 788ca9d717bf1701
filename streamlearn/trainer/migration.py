"""Migration: what a changed application takes over from the one that it replaces, and its first version with it.

Features and labels of both are the same where they have the same first name (`was`). It reads and writes the store
only: no shard takes part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App, AppFolder
from streamlearn.apps.sides import check_sides
from streamlearn.errors import UsageError
from streamlearn.features import Calibration, Cross, Dense, Label, Number, Slot
from streamlearn.features.retrieval import PREFIX, TOWERS, of_ranking
from streamlearn.features.spec import Keyed
from streamlearn.library.library import Library
from streamlearn.models import Model, model_of
from streamlearn.publisher import Lineage
from streamlearn.table import Changes
from streamlearn.topics import Topic
from streamlearn.trainer.inherited_weights import Channels, Inheritance, Outcome, inherit
from streamlearn.trainer.intake.feed import beginning_of
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.restore import positions_of
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.trainer.towers.tower_state import TowerState
from streamlearn.trainer.trainer import COUNTED
from streamlearn.versions import Chain, Cut, Store, TimeSkip, VersionRef, VersionWriter, load_tensors
from streamlearn.versions.format.library_files import library_in
from streamlearn.versions.format.loading import load_bytes
from streamlearn.versions.format.log import Log
from streamlearn.versions.format.manifest import Origin, TableRecord
from streamlearn.versions.format.scratch import scan_table
from streamlearn.versions.pointer.fence import Fence

__all__ = ["Migration", "Part"]

_TABLE_FIELDS = ("dim", "initial_range", "seed", "optimizer", "tick_ms")
_BEFORE_ALL_MS = -(1 << 62)


@dataclass(frozen=True)
class Part:
    """One part of the changed application: what happens to what was learned for it, and why if it is lost."""

    kind: str
    name: str
    outcome: Outcome | Literal["gone"]
    why: str = ""


class Migration:
    """The step from a version of one application to the first version of another.

    `source` is a version of the application in `old`. With `is_relearning` the new model learns all retained samples,
    also those that the source has learned; its figures begin where the source ends.

    Raises:
        UsageError: `old` is not the application of the source, or the two do not belong together.
    """

    def __init__(
        self, old: AppFolder, new: AppFolder, store: Store, source: Chain, *, is_relearning: bool = False
    ) -> None:
        self._old, self._new, self._store, self._source = old, new, store, source
        self._is_relearning = is_relearning
        self._old_lineage, self._lineage = Lineage.of(old), Lineage.of(new)
        check_sides(old, new)
        self._old_lineage.check(source.manifest)
        if Log(store, new.app.name).newest() is not None:
            message = f"{new.app.name!r} has versions in {store.url}: it has begun already"
            raise UsageError(message, help="give the changed application another `name`")
        self.model, self._old_model = model_of(new), model_of(old)
        self._learner = Learner(new.app, self.model, new.settings.trainer)
        self._old_learner = Learner(old.app, self._old_model, old.settings.trainer)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All parts of both applications, in the order of their declarations."""
        old, new = self._old.app, self._new.app
        widths = {column.first_name: column.width for column in old.features.dense}
        dense = [Part("dense column", column.name, *_dense_outcome(column, widths)) for column in new.features.dense]
        labels = [Part("label", label.name, *self._label_outcome(label)) for label in new.labels]
        gone = [*_gone("slot", old.features.slots, new.features.slots)]
        made = {one.name for one in new.features.derived_keyed}
        gone += [Part(_kind(one), one.name, "gone") for one in old.features.derived_keyed if one.name not in made]
        gone += [*_gone("dense column", old.features.dense, new.features.dense)]
        gone += [*_gone("label", old.labels, new.labels)]
        weights = [Part("weight", name, one.outcome, self._why_lost(one)) for name, one in self._inherited.items()]
        return (*self._slot_parts, *dense, *labels, *gone, *weights, *self._dropped_weights, *self._tower_parts)

    @cached_property
    def lost(self) -> tuple[Part, ...]:
        """What was learned and cannot be taken over."""
        return tuple(part for part in self.parts if part.outcome == "lost")

    def check(self) -> None:
        """Raise `UsageError` if the new model loses what was learned, and does not learn the samples again."""
        if not self.lost or self._is_relearning:
            return
        first = self.lost[0]
        what = f"{first.kind} {first.name!r}: {first.why}"
        message = f"{len(self.lost)} parts of {self._new.app.name!r} would lose what was learned, such as {what}"
        help = "give --relearn to learn all retained samples again before it serves; --dry-run lists the parts"
        raise UsageError(message, help=help)

    def write(self, topic: Topic, graph: str, by: str) -> tuple[VersionRef, Mapping[str, int]]:
        """Commit the first version, and return it with the rows taken over by table.

        `topic` has the samples of the new application. Nodes serve the version once a trainer has started.
        """
        self.check()
        manifest = self._source.manifest
        reached, marks = self._learned(topic)
        origin = Origin(
            model=self._old.app.name, version=self._source.ref, clock_ms=reached.clock_ms,
            is_relearned=self._is_relearning,
        )  # fmt: skip
        run = Fence(self._store, self._new.app.name).take(by)
        head = replace(self._lineage, origin=origin).head(run, 1, None)
        writer = VersionWriter(self._store, head)
        sources = {table.name for table in manifest.tables}
        kept = (table.name for table in self._lineage.tables if not self._why_fresh[table.name])
        rows = {name: 0 for name in kept if name in sources}
        writer.add_rows(self._rows(rows))
        dense, state = self._weights()
        writer.add_dense(dense)
        writer.add_dense_optimizer(state)
        if self._new.app.retrieval is not None:
            writer.add_library(self._items())
        skips = manifest.skips
        horizon_ms = marks.horizon_ms
        if self._is_relearning:
            marks = SharedMarks.of(self._new.app, self._new.settings.marks)
            reached = beginning_of(topic)
        elif horizon_ms is not None:
            # Marks of older rows are forgotten, and they were learned.
            skips = (*skips, TimeSkip(begin_ms=_BEFORE_ALL_MS, end_ms=horizon_ms))
        writer.add_marks(marks.save(reached))
        known = {} if self._is_relearning else manifest.metrics
        counted = {name: known[name] for name in COUNTED if name in known}
        cut = Cut(positions=positions_of(topic, reached), skips=skips, graph=graph, metrics=counted)
        return writer.finish(cut).ref, rows

    def _learned(self, topic: Topic) -> tuple[Reached, SharedMarks]:
        """Return the marks for the new labels, and the position from which the new application reads its samples."""
        marks = SharedMarks.of(self._old.app, self._new.settings.marks)
        reached = marks.load(load_bytes(self._store, self._source.head, "marks"))
        known = [label.first_name for label in self._old.app.labels]
        sources = [
            known.index(label.first_name) if label.first_name in known else None for label in self._new.app.labels
        ]
        ids = {entry.topic_id for entry in self._source.manifest.samples_positions}
        if ids != {topic.topic_id}:
            reached = replace(beginning_of(topic), clock_ms=reached.clock_ms)
        return reached, marks.relabelled(sources, numbers=self._new.app.corrected_numbers)

    def _items(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return the library of the source; none if it has other columns, since topics fill it again."""
        library, items = Library(self._new.app), library_in(self._store, self._source.links)
        return library.cut().tensors if items is None or library.unfit(items) else items

    def _weights(self) -> tuple[dict[str, npt.NDArray[np.float32]], dict[str, npt.NDArray[Any]]]:
        """Return the weights and the optimizer's state."""
        stored = of_ranking(load_tensors(self._store, self._source.head, "dense"))
        sources = self._old_learner.completed(stored)
        initial = self._learner.named(self._learner.weights())
        dense = {name: self._inherited[name].fill(weight, sources) for name, weight in initial.items()}
        curves = {one.weight_name: one for one in self._new.app.features.curves}
        for name, curve in self._learner.curves.items():  # without their old ones, labels begin uncalibrated
            is_same = curves[name] in self._old.app.features.curves and not self._is_other_model
            dense[name] = sources[name] if is_same else curve
        state = self._learner.optimizer_state()
        learned = of_ranking(load_tensors(self._store, self._source.head, "dense_optimizer"))
        same = learned.keys() == state.keys() and (
            self._old.settings.trainer.optimizer == self._new.settings.trainer.optimizer
        )
        if same and not self.lost:
            for name in state:
                if name != "steps":
                    slot = self._old_learner.completed_slot(learned[name], stored)
                    state[name] = self._state(state[name], self._old_learner.named(slot))
            state["steps"] = np.asarray(learned["steps"])
        of_towers, rest = self._towers()
        return dense | of_towers, state | rest

    def _towers(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
        """Return the weights of the towers, and all else that they hold."""
        if self._new.app.retrieval is None:
            return {}, {}
        fresh = TowerState(self._new)
        dense, state = fresh.dense(), fresh.optimizer_state()
        if not self._why_fresh[TOWERS]:
            dense |= _of_towers(load_tensors(self._store, self._source.head, "dense"))
            state |= _of_towers(load_tensors(self._store, self._source.head, "dense_optimizer"))
        return dense, state

    @property
    def _tower_parts(self) -> list[Part]:
        if self._new.app.retrieval is None:
            return [] if self._old.app.retrieval is None else [Part("retrieval", self._old.app.retrieval.label, "gone")]
        why = self._why_fresh[TOWERS]
        return [Part("retrieval", self._new.app.retrieval.label, "new" if why else "kept", why)]

    def _state(self, initial: npt.NDArray[Any], learned: Mapping[str, npt.NDArray[np.float32]]) -> npt.NDArray[Any]:
        """Return one vector of the optimizer's numbers for all weights."""
        filled = [
            self._inherited[name].fill(numbers, learned, is_state=True).ravel()
            for name, numbers in self._learner.named(initial).items()
        ]
        return np.concatenate([np.zeros(0, np.float32), *filled])

    @cached_property
    def _inherited(self) -> dict[str, Inheritance]:
        old, new = self._old.app, self._new.app
        shapes, before = self._learner.shapes, self._old_learner.shapes
        if self._is_other_model:
            return dict.fromkeys(shapes, Inheritance("lost"))
        lost = [part.name for part in self._slot_parts if part.outcome == "lost"]
        lost += [f"label {label.name}" for label in new.labels if self._label_outcome(label)[0] == "lost"]
        names, before_names = _first_names(new), _first_names(old)
        names |= {name: f"{name} lost" for name in lost}
        channels, old_channels = _channels(self.model, names), _channels(self._old_model, before_names)
        if channels is None or old_channels is None:
            channels, old_channels = {}, {}
            if not self._has_same_inputs or [*names.values()] != [*before_names.values()]:
                return dict.fromkeys(shapes, Inheritance("lost"))
        of_old = {slot.first_name: slot.name for slot in old.features.slots}
        renamed = {slot.name: of_old.get(slot.first_name, slot.name) for slot in new.features.slots}
        return inherit(shapes, channels, before, old_channels, renamed)

    @property
    def _dropped_weights(self) -> list[Part]:
        """Weights that the model no longer has, although it still has columns or labels to which they belong.

        The product of two slots belongs to both. That of a slot with itself goes with the last other slot of its side.
        """
        before = {} if self._is_other_model else _channels(self._old_model, _first_names(self._old.app)) or {}
        derived = (one.name for one in self._new.app.features.derived_keyed)
        here = {*_first_names(self._new.app).values(), *derived}
        used = {inheritance.source for inheritance in self._inherited.values()}

        def stays(channel: str) -> bool:
            slots = channel.split(" * ")
            return here.issuperset(slots) and len({*slots}) == len(slots)

        def is_needed(weight: str) -> bool:
            return any(stays(channel) for axis in before[weight] for channel, _ in axis or ())

        why = "the model has no such weight any more"
        return [Part("weight", name, "lost", why) for name in before if name not in used and is_needed(name)]

    @property
    def _is_other_model(self) -> bool:
        return type(self.model).__name__ != type(self._old_model).__name__

    @property
    def _has_same_inputs(self) -> bool:
        def layout(folder: AppFolder) -> list[int]:
            pack = folder.app.features.of_model.pack
            return [column.width for side in (pack.user, pack.item) for column in (*side.flat, *side.sequence)]

        return layout(self._old) == layout(self._new)

    def _why_lost(self, inheritance: Inheritance) -> str:
        if inheritance.outcome != "lost":
            return ""
        if self._is_other_model:
            return f"the model was {self._old.app.model} and is {self._new.app.model}"
        if not hasattr(self.model, "weight_channels"):
            return f"{self._new.app.model} does not say what its weights belong to (weight_channels)"
        return "its size or its place in the model changed"

    @cached_property
    def _slot_parts(self) -> tuple[Part, ...]:
        was = {slot.first_name: slot for slot in self._old.app.features.slots}
        slots = self._new.app.features.slots
        return (
            *(Part("slot", slot.name, *self._slot_outcome(slot, was.get(slot.first_name))) for slot in slots),
            *(Part(_kind(one), one.name, *self._derived_outcome(one)) for one in self._new.app.features.derived_keyed),
        )

    def _slot_outcome(self, slot: Slot, was: Slot | None) -> tuple[Outcome, str]:
        if was is None:
            return "new", ""
        if (slot.salt_name, slot.value) != (was.salt_name, was.value):
            return "lost", "its keys are others: `keys_of` or `value` changed"
        return self._table_outcome(slot, was)

    def _derived_outcome(self, column: Cross | Calibration) -> tuple[Outcome, str]:
        was = next((one for one in self._old.app.features.derived_keyed if one.name == column.name), None)
        if was is None:
            return "new", ""
        if _made_of(self._new.app, column) != _made_of(self._old.app, was):
            return "lost", "it is made of other columns, or of another label"
        if isinstance(column, Calibration):
            outcome, why = self._label_outcome(self._new.app.labels[self._new.app.label_names.index(column.label)])
            if outcome == "lost":
                return "lost", f"its label: {why}"
        return self._table_outcome(column, was)

    def _table_outcome(self, slot: Keyed, was: Keyed | None) -> tuple[Outcome, str]:
        if was is None:
            return "new", ""
        if slot.table != was.table:
            return "lost", f"it was in table {was.table} and is in {slot.table}"
        return ("lost", self._why_fresh[slot.table]) if self._why_fresh[slot.table] else ("kept", "")

    @cached_property
    def _why_fresh(self) -> dict[str, str]:
        """By table of the new application, why it starts empty; empty if it keeps its rows."""
        sources = {table.name: table for table in self._source.manifest.tables}
        why = {table.name: _difference(table, sources.get(table.name)) for table in self._lineage.tables}
        old, new = _labels(self._old.app), _labels(self._new.app)
        of_towers = why.pop(TOWERS, "")
        if old != new and getattr(self.model, "rows_have_labels", False):
            why = {name: reason or "its rows have a number for each label" for name, reason in why.items()}
        if self._new.app.retrieval_fingerprint != self._old.app.retrieval_fingerprint:
            of_towers = "it was declared otherwise, or not at all"
        return why | {TOWERS: of_towers}

    def _label_outcome(self, label: Label) -> tuple[Outcome, str]:
        old, new = dict(_labels(self._old.app)), dict(_labels(self._new.app))
        if label.first_name not in old:
            return "new", ""
        (followed, meant), (follows, means) = old[label.first_name], new[label.first_name]
        if followed != follows:
            return "lost", f"it followed {followed or 'none'} and follows {follows or 'none'}"
        return ("kept", "") if meant == means else ("lost", f"it was {meant} and is {means}")

    def _rows(self, rows: dict[str, int]) -> Iterator[Changes]:
        """Yield the rows of the tables that keep them, and count them in `rows`."""
        for name in rows:
            for (changes,) in scan_table([self._source], name):
                rows[name] += len(changes.keys)
                yield changes


def _of_towers(tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}


def _difference(table: TableRecord, source: TableRecord | None) -> str:
    if source is None:
        return ""
    for name in _TABLE_FIELDS:
        if getattr(table, name) != getattr(source, name):
            return f"the {name} of its table was {getattr(source, name)} and is {getattr(table, name)}"
    return ""


def _dense_outcome(column: Dense, widths: Mapping[str, int]) -> tuple[Outcome, str]:
    if column.first_name not in widths:
        return "new", ""
    width = widths[column.first_name]
    return ("kept", "") if width == column.width else ("lost", f"its width was {width} and is {column.width}")


def _kind(column: Keyed) -> str:
    return type(column).__name__.lower()


def _made_of(app: App, column: Cross | Calibration) -> list[str]:
    """Return what a derived column is made of, by first names."""
    names = _first_names(app)
    labels = [f"label {column.label}"] if isinstance(column, Calibration) else []
    return [_kind(column), *(names[name] for name in (*column.of, *labels))]


def _labels(app: App) -> list[tuple[str, tuple[str | None, str]]]:
    """Return the first names of an application's labels, each with that of the label it follows and what it says."""
    first = {label.name: label.first_name for label in app.labels}
    return [(label.first_name, (first.get(label.follows or ""), _meaning(label.number))) for label in app.labels]


def _meaning(number: Number | None) -> str:
    """Return what a model says of a label, in words."""
    if number is None:
        return "positive or negative"
    if number.is_logarithm:
        return f"the logarithm of a number over {number.scale:g}"
    return f"a number around {number.center:g} over {number.scale:g}"


def _gone(kind: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[Part]:
    names = {column.first_name for column in new}
    return (Part(kind, column.name, "gone") for column in old if column.first_name not in names)


def _first_names(app: App) -> dict[str, str]:
    """Return the first names by the names of an application's columns, and of its labels as `_channels` has them."""
    names = {slot.name: slot.first_name for slot in app.features.slots}
    names |= {column.name: column.first_name for column in app.features.dense}
    return names | {f"label {label.name}": f"label {label.first_name}" for label in app.labels}


def _channels(model: Model, names: Mapping[str, str]) -> Channels | None:
    """Return the channels of a model's weights with the first names of columns; None if the model does not tell."""
    if not hasattr(model, "weight_channels"):
        return None

    def first(name: str) -> str:
        return names[name] if name in names else " ".join(names.get(part, part) for part in name.split(" "))

    return {
        weight: tuple(None if axis is None else [(first(name), number) for name, number in axis] for axis in axes)
        for weight, axes in model.weight_channels().items()
    }
