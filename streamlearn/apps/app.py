"""An application: what its features and labels are, apart from where it runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from streamlearn.errors import SpecError
from streamlearn.features import FeatureSpec, Label, LabelGroup, window_settings_id
from streamlearn.features.labels import check_labels
from streamlearn.features.names import check_name, declared, fingerprint, model_fingerprint, tuple_of

__all__ = ["App"]

# Fields of slots and dense columns that a model reads and no sample depends on. A default leaves both valid.
_OF_THE_MODEL = ("table", "dim", "initial_range", "default")
_MODEL = re.compile(r"[a-z][a-z0-9_]*|[a-z_][a-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class App:
    """What an application is, apart from where it runs.

    Attributes:
        name: MODEL on a command line, and the prefix of its topics.
        features: What a request and an item look like.
        groups: The windows in which labels are decided.
        labels: What is predicted, in the order of every score vector.
        model: A ready-made model's name, or "module:Class" of a module beside app.py. Only the trainer
            resolves it.
    """

    name: str
    features: FeatureSpec
    groups: tuple[LabelGroup, ...]
    labels: tuple[Label, ...]
    model: str = "dcn_v2"

    def __post_init__(self) -> None:
        """Refuse an application that contradicts itself.

        Raises:
            SpecError: With the first contradiction found.
        """
        object.__setattr__(self, "groups", tuple_of("groups", LabelGroup, self.groups))
        object.__setattr__(self, "labels", tuple_of("labels", Label, self.labels))
        check_name("app", self.name)
        check_labels(self.groups, self.labels)
        if not _MODEL.fullmatch(self.model):
            message = f"model {self.model!r} is neither a ready-made model's name nor MODULE:CLASS"
            raise SpecError(message, help='for example model="dcn_v2" or model="model:MyModel"')

    @cached_property
    def window_settings(self) -> str:
        """Changes when the same events would give other samples."""
        return window_settings_id(self.groups, self.labels)

    @cached_property
    def label_names(self) -> tuple[str, ...]:
        """The names of its labels, in order."""
        return tuple(label.name for label in self.labels)

    @cached_property
    def samples_fingerprint(self) -> str:
        """Changes when the bytes of samples would: other slots, dense columns, item id or labels, or another order.

        Dims, tables, initial ranges and the model do not enter: they change and compare on the samples there are.
        """
        columns = [*map(declared, self.features.slots), *map(declared, self.features.dense)]
        for column in columns:
            for field in _OF_THE_MODEL:
                column.pop(field, None)
            if column.get("pooling") in ("mean", "sqrtn"):  # samples have the same keys for these as for "sum"
                del column["pooling"]
        said = {"columns": columns, "item_id": self.features.item_id, "labels": list(self.label_names)}
        return fingerprint(said)

    @cached_property
    def model_fingerprint(self) -> str:
        """Changes when versions trained before could not be continued: other features or other labels."""
        return model_fingerprint(self.features.fingerprint, self.label_names)

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions its labels are made of, each once."""
        return tuple(dict.fromkeys(label.action for label in self.labels))
