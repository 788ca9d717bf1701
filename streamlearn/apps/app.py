"""An application: its features and labels, independent of where it runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from streamlearn.features import FeatureSpec, Label, LabelGroup, Retrieval, TableSpec, window_settings_id
from streamlearn.features.behaviour import IMPRESSION, Sum
from streamlearn.features.labels import Output, check_labels
from streamlearn.features.names import check_name, declared, fingerprint, model_fingerprint, require, tuple_of
from streamlearn.features.retrieval import check_retrieval

__all__ = ["App"]

# Fields of slots and dense columns on which models depend and samples do not. A new default leaves both valid.
_MODEL_FIELDS = ("table", "dim", "initial_range", "default")
_MODEL = re.compile(r"[a-z][a-z0-9_]*|[a-z_][a-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class App:
    """The declaration of an application; one that contradicts itself raises SpecError.

    Attributes:
        name: MODEL on a command line, and the prefix of its topics.
        features: The features of a request and its items.
        groups: The windows in which labels are decided.
        labels: The prediction targets, in the order of every score vector.
        model: The name of a ready-made model, or "module:Class" of a module beside app.py. Only the trainer
            resolves it.
        serves: The name by which callers know the model, and which its events have; `name` by default. A changed
            application has a new `name`, and here the one of the application that it replaces.
        samples_of: The name of an application whose events and samples this one uses too, to compare two models on one
            traffic: ingest runs once, for the other one. Their features and labels must agree, apart from what only
            models use.
        retrieval: Set if candidates are retrieved from a library of items, too.
    """

    name: str
    features: FeatureSpec
    groups: tuple[LabelGroup, ...]
    labels: tuple[Label, ...]
    model: str = "dcn_v2"
    serves: str = ""
    samples_of: str = ""
    retrieval: Retrieval | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple_of("groups", LabelGroup, self.groups))
        object.__setattr__(self, "labels", tuple_of("labels", Label, self.labels))
        check_name("app", self.name)
        check_name("app", self.served_name)
        check_name("app", self.samples_name)
        check_labels(self.groups, self.labels)
        self._check_kinds()
        logits = [label.name for label in self.labels if label.number is None]
        for one in self.features.calibrations:
            message = f"calibration {one.name!r} is of {one.label!r}, which is not a label that is positive or negative"
            require(one.label in logits, message, f"such labels are {', '.join(logits) or 'not declared'}")
        of_curves = [one.label for one in self.features.curves]
        for label in of_curves:
            message = f"label {label!r} has two isotonic calibrations"
            require(of_curves.count(label) == 1, message, "keep one of them, best that of the slot with fewest values")
        _check_model(self.model, "dcn_v2", "MyModel")
        if self.retrieval is not None:
            check_retrieval(self.retrieval, self.features, self.labels)
            _check_model(self.retrieval.model, "two_tower", "MyTowers")

    def _check_kinds(self) -> None:
        known = (*self.actions, IMPRESSION)
        message = f"an action is named {IMPRESSION!r}, which is the kind of an item that is shown"
        require(not self.features.entities or IMPRESSION not in self.actions, message, "name the action otherwise")
        for entity in self.features.entities:
            for kind in entity.kinds:
                message = f"a computed column of the {entity.side} side is of {kind!r}, which no label is made of"
                require(kind in known, message, f"the kinds of interactions are {', '.join(known)}")
            for column in entity.columns:
                if isinstance(column.computed, Sum):
                    of = column.computed.of
                    wrong = {of} if isinstance(of, str) else set(of)
                    wrong -= self.number_actions
                    message = f"column {column.name!r} sums the values of {', '.join(sorted(wrong))}, which have none"
                    require(not wrong, message, "only actions that make labels which are numbers carry values")

    @property
    def served_name(self) -> str:
        """The name by which callers know the model."""
        return self.serves or self.name

    @property
    def samples_name(self) -> str:
        """The name of the application whose ingest makes its samples."""
        return self.samples_of or self.name

    @property
    def events_name(self) -> str:
        """The name that its events have."""
        return self.samples_of or self.served_name

    @cached_property
    def window_settings(self) -> str:
        """Changes when the same events would give other samples."""
        return window_settings_id(self.groups, self.labels)

    @cached_property
    def label_names(self) -> tuple[str, ...]:
        """The names of its labels, in order."""
        return tuple(label.name for label in self.labels)

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """What a model says of each label."""
        follows = [None if label.follows is None else self.label_names.index(label.follows) for label in self.labels]
        curves, names = {one.label: one for one in self.features.curves}, dict[str, tuple[str, ...]]()
        for one in self.features.calibrations:
            if one not in self.features.curves:
                names[one.label] = (*names.get(one.label, ()), one.name)
        return tuple(
            Output(at, label.number, names.get(label.name, ()), curves.get(label.name))
            for at, label in zip(follows, self.labels, strict=True)
        )

    @property
    def has_numbers(self) -> bool:
        """Whether any label is a number: actions may then carry values, and samples numbers."""
        return bool(self.number_actions)

    @cached_property
    def number_actions(self) -> frozenset[str]:
        """The actions whose values make labels that are numbers."""
        return frozenset(label.action for label in self.labels if label.number is not None)

    @cached_property
    def corrected_numbers(self) -> int:
        """The labels that are numbers and have corrections, one bit each."""
        groups = {group.name: group for group in self.groups}
        bits = 0
        for at, label in enumerate(self.labels):
            group = groups[label.group]
            bits |= (label.number is not None and group.wait_s < group.window_s) << at
        return bits

    @cached_property
    def samples_fingerprint(self) -> str:
        """Changes with the bytes of samples: slots, dense columns, item id, labels and their order.

        Dims, tables, initial ranges and the model do not count: existing samples can train any of them.
        """
        columns = [*map(declared, self.features.slots), *map(declared, self.features.dense)]
        for column in columns:
            for field in _MODEL_FIELDS:
                column.pop(field, None)
            if column.get("pooling") in ("mean", "sqrtn"):  # samples have the same keys for these as for "sum"
                del column["pooling"]
        labels = list(self.label_names)
        values: dict[str, object] = {"columns": columns, "item_id": self.features.item_id, "labels": labels}
        if self.features.entities:
            values["entities"] = [entity.slot for entity in self.features.entities]
        if self.has_numbers:
            values["numbers"] = [label.name for label in self.labels if label.number is not None]
        if self.retrieval is not None:
            values["item_ids"] = True
        return fingerprint(values)

    @cached_property
    def model_fingerprint(self) -> str:
        """Changes when training cannot continue from older versions: other features or other labels."""
        of_labels = model_fingerprint(self.features.fingerprint, self.label_names)
        if all(output == Output() for output in self.outputs):
            return of_labels
        parts: list[object] = [of_labels, [output.followed for output in self.outputs]]
        if self.has_numbers:  # what they mean; how they are learned may change
            numbers = [output.number for output in self.outputs]
            parts.append([one and [one.is_logarithm, float(one.center), float(one.scale)] for one in numbers])
        return fingerprint(parts)

    @cached_property
    def towers(self) -> FeatureSpec | None:
        """The features of the towers; None without retrieval."""
        return None if self.retrieval is None else self.retrieval.features(self.features)

    @cached_property
    def tables(self) -> tuple[TableSpec, ...]:
        """All its tables that learn: those of its features, then that of the towers."""
        return self.features.tables if self.towers is None else (*self.features.tables, *self.towers.tables)

    @cached_property
    def retrieval_fingerprint(self) -> str:
        """Changes when the towers cannot continue from older versions; empty without retrieval."""
        if self.retrieval is None or self.towers is None:
            return ""
        label = self.labels[self.label_names.index(self.retrieval.label)]
        return self.retrieval.fingerprint(self.towers, label)

    @property
    def actions(self) -> tuple[str, ...]:
        """The distinct actions of its labels."""
        return tuple(dict.fromkeys(label.action for label in self.labels))


def _check_model(model: str, ready: str, own: str) -> None:
    message = f"model {model!r} is neither a ready-made model's name nor MODULE:CLASS"
    help = f'for example model="{ready}" or model="model:{own}"'
    require(_MODEL.fullmatch(model) is not None, message, help)
