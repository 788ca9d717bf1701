"""What a join is told: an application's label groups and labels as numbers, and its bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.errors import SpecError
from streamlearn.features import Label, LabelGroup
from streamlearn.native import native
from streamlearn.settings.join import JoinSettings

__all__ = ["JoinPlan"]

LABELS_MAX, ACTIONS_MAX = 32, 255


@dataclass(frozen=True)
class JoinPlan:
    """Everything that decides which rows events become.

    Attributes:
        groups: The application's label groups.
        labels: Its labels: a label's place is its bit in masks.
        events_topic_id: The id of the impressions topic: a part of every identity.
        settings: Bounds.
        from_ms: Impressions before this make no rows; None: all do.
    """

    groups: tuple[LabelGroup, ...]
    labels: tuple[Label, ...]
    events_topic_id: str
    settings: JoinSettings = field(default_factory=JoinSettings)
    from_ms: int | None = None

    # The number of an action that no label asks for.
    NO_LABEL = ACTIONS_MAX

    def __post_init__(self) -> None:
        if len(self.labels) > LABELS_MAX or len(self.codes) > ACTIONS_MAX:
            message = f"{len(self.labels)} labels of {len(self.codes)} actions"
            raise SpecError(message, help=f"a join takes at most {LABELS_MAX} labels of {ACTIONS_MAX} actions")

    @classmethod
    def of(cls, app: App, events_topic_id: str, settings: JoinSettings, from_ms: int | None = None) -> Self:
        """The plan of an application."""
        return cls(tuple(app.groups), tuple(app.labels), events_topic_id, settings, from_ms)

    @property
    def codes(self) -> Mapping[str, int]:
        """The number of each action that makes a label positive."""
        actions = dict.fromkeys(label.action for label in self.labels)
        return {action: number for number, action in enumerate(actions)}

    def codes_of(self, actions: Sequence[str]) -> npt.NDArray[np.uint8]:
        """Actions by number; `NO_LABEL` for those that no label asks for."""
        codes = self.codes
        return np.fromiter((codes.get(action, self.NO_LABEL) for action in actions), np.uint8, len(actions))

    @property
    def rates(self) -> npt.NDArray[np.float32]:
        """The share of negatives kept, by label."""
        return np.array([label.sample_rate for label in self.labels], np.float32)

    @property
    def longest_window_ms(self) -> int:
        """After this an impression is forgotten."""
        return 1_000 * max(group.window_s for group in self.groups)

    @property
    def shortest_window_ms(self) -> int:
        """After this the bytes of an impression are let go of."""
        return 1_000 * min(group.window_s for group in self.groups)

    @property
    def slice_ms(self) -> int:
        """Event time that memory is let go of by."""
        return max(1, self.shortest_window_ms // self.settings.window_slices)

    def salt(self, label: Label) -> int:
        """The seed of the hash that chooses which of a label's negatives are kept."""
        return int(native.slot_salt(f"{self.events_topic_id}/{label.name}"))

    def native_arguments(self) -> tuple[Any, Any, Any]:
        """Groups, labels and numbers, as the native core takes them."""
        names = [group.name for group in self.groups]
        codes, settings = self.codes, self.settings
        labels = [
            (codes[label.action], names.index(label.group), float(label.sample_rate), self.salt(label))
            for label in self.labels
        ]
        numbers = (
            self.slice_ms,
            round(1_000 * settings.orphan_wait_s),
            float(settings.logged_share),
            -(1 << 63) if self.from_ms is None else self.from_ms,
            settings.pending_bytes_max,
            settings.request_impressions_max,
            settings.request_actions_max,
        )
        return [(1_000 * group.wait_s, 1_000 * group.window_s) for group in self.groups], labels, numbers
