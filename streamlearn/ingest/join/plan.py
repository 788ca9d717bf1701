"""JoinPlan: an application's label groups and labels as numbers, and the limits of a join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from streamlearn.apps import App
from streamlearn.errors import SpecError
from streamlearn.features import Label, LabelGroup, Number
from streamlearn.features.behaviour import IMPRESSION
from streamlearn.native import native
from streamlearn.settings.join import JoinSettings

__all__ = ["JoinPlan", "JoinRules", "LabelRule", "NumberRule"]

LABELS_MAX, ACTIONS_MAX = 32, 255


class NumberRule(NamedTuple):
    """How a label that is a number follows from actions."""

    combine: str  # several actions: "last", "sum" or "max"
    settles_without: bool  # whether an item without the action settles the label


class LabelRule(NamedTuple):
    """A label."""

    action: int  # the number of the action that makes it positive
    group: int  # the index of its group
    rate: float  # the share of its negatives that are kept
    salt: int  # the seed of the hash that chooses them
    number: NumberRule | None


class JoinRules(NamedTuple):
    """The rules and limits of the native core; all times are event time."""

    groups: tuple[LabelGroup, ...]
    labels: list[LabelRule]
    slice_ms: int
    orphan_wait_ms: int
    share: float  # of the requests that serving logs
    from_ms: int
    pending_bytes_max: int
    parts_max: int  # impressions of a request that show different items
    waiting_max: int  # actions of a request that wait for its impression
    makes: str  # which interactions: "nothing", "actions", or "all", with items shown


def _number_rule(number: Number | None) -> NumberRule | None:
    return None if number is None else NumberRule(number.combine, number.missing != "unlabelled")


@dataclass(frozen=True)
class JoinPlan:
    """The rules by which events become rows.

    Attributes:
        labels: A label's index is its bit in masks.
        events_topic_id: The id of the impressions topic: a part of every identity.
        from_ms: Earlier impressions make no rows, but within one longest window they claim items. None: all make rows.
        makes: Which interactions are made: "nothing", "actions", or "all", with items shown.
    """

    groups: tuple[LabelGroup, ...]
    labels: tuple[Label, ...]
    events_topic_id: str
    settings: JoinSettings = field(default_factory=JoinSettings)
    from_ms: int | None = None
    makes: str = "nothing"

    def __post_init__(self) -> None:
        if len(self.labels) > LABELS_MAX or len(self.codes) > ACTIONS_MAX:
            message = f"{len(self.labels)} labels of {len(self.codes)} actions"
            raise SpecError(message, help=f"a join takes at most {LABELS_MAX} labels of {ACTIONS_MAX} actions")

    @classmethod
    def of(cls, app: App, events_topic_id: str, settings: JoinSettings, from_ms: int | None = None) -> Self:
        """Return the plan of an application."""
        kinds = [kind for entity in app.features.entities for kind in entity.kinds]
        makes = "nothing" if not kinds else "all" if IMPRESSION in kinds else "actions"
        return cls(tuple(app.groups), tuple(app.labels), events_topic_id, settings, from_ms, makes)

    @property
    def codes(self) -> Mapping[str, int]:
        """The number of each action that makes a label positive."""
        actions = dict.fromkeys(label.action for label in self.labels)
        return {action: number for number, action in enumerate(actions)}

    @property
    def longest_window_ms(self) -> int:
        """The join forgets an impression after this time."""
        return 1_000 * max(group.window_s for group in self.groups)

    @property
    def shortest_window_ms(self) -> int:
        """The join drops the bytes of an impression after this time."""
        return 1_000 * min(group.window_s for group in self.groups)

    @property
    def slice_ms(self) -> int:
        """The step of event time by which the join forgets."""
        return max(1, self.shortest_window_ms // self.settings.window_slices)

    @property
    def early_ms(self) -> int:
        """How long before its impression an action may be: it waits up to one slice longer than it must."""
        return round(1_000 * self.settings.orphan_wait_s) + self.slice_ms

    def salt(self, label: Label) -> int:
        """Return the seed of the hash that chooses which of a label's negatives are kept."""
        return int(native.slot_salt(f"{self.events_topic_id}/{label.name}"))

    def rules(self) -> JoinRules:
        """Return the rules for the native core."""
        names = [group.name for group in self.groups]
        codes, settings = self.codes, self.settings
        return JoinRules(
            groups=self.groups,
            labels=[
                LabelRule(
                    codes[label.action],
                    names.index(label.group),
                    float(label.sample_rate),
                    self.salt(label),
                    _number_rule(label.number),
                )
                for label in self.labels
            ],
            slice_ms=self.slice_ms,
            orphan_wait_ms=round(1_000 * settings.orphan_wait_s),
            share=float(settings.logged_share),
            from_ms=-(1 << 63) if self.from_ms is None else self.from_ms,
            pending_bytes_max=settings.pending_bytes_max,
            parts_max=settings.request_impressions_max,
            waiting_max=settings.request_actions_max,
            makes=self.makes,
        )
