"""Labels, and the groups of labels that share a window. All durations here are event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamlearn.features.combination import Calibration
from streamlearn.features.names import check_name, check_unique, declared, fingerprint, require
from streamlearn.features.number import Number, check_number

__all__ = ["Label", "LabelGroup", "Output", "check_labels", "labels_differ", "window_settings_id"]

WINDOW_S_MAX = 90 * 86_400
LOSS_WEIGHT_MAX = 1e6
# Fields of labels on which models depend and samples do not.
_MODEL_FIELDS = ("follows", "loss_weight", "number")


@dataclass(frozen=True)
class LabelGroup:
    """Labels that are decided together.

    Attributes:
        name: The group's name.
        wait_s: A row is emitted this long after the impression, with the actions known by then.
        window_s: An action later than `wait_s` and within `window_s` emits a correction; an even later one is
            late. If both are equal, there are no corrections.
    """

    name: str
    wait_s: int
    window_s: int


@dataclass(frozen=True)
class Label:
    """One prediction target of a model.

    Attributes:
        name: Its name in samples, metrics and scores.
        action: The action that makes it positive.
        group: The label group that sets its window.
        sample_rate: The share of negatives kept; a hash chooses them, so that a replay keeps the same ones.
        follows: The label whose action comes first, such as "click" for a purchase. The model then learns how often
            this label follows that one, and its score is the product of both: see docs/models.md. Its group waits until
            that label is final.
        loss_weight: The factor of its loss, beside those of other labels.
        number: Set for a label that is a number, made of the values of its actions. Nothing of it is sampled away, and
            it follows no label.
        was: The name under which a renamed label was first learned. It stays for as long as models inherit from each
            other.
    """

    name: str
    action: str
    group: str
    sample_rate: float = 1.0
    follows: str | None = None
    loss_weight: float = 1.0
    number: Number | None = None
    was: str | None = None

    @property
    def first_name(self) -> str:
        """The name under which it was first learned."""
        return self.was or self.name


@dataclass(frozen=True)
class Output:
    """What a model says of a label.

    Attributes:
        followed: The number of the label that it follows: the model says the logit of what happens after that one.
        number: Set if the model says a number; of any other label it says a logit.
        calibrations: The columns whose numbers calibrate the logit.
        curve: The calibration whose curve calibrates the prediction, if there is one.
    """

    followed: int | None = None
    number: Number | None = None
    calibrations: tuple[str, ...] = ()
    curve: Calibration | None = None


def check_labels(groups: Sequence[LabelGroup], labels: Sequence[Label]) -> None:
    """Refuse groups and labels that contradict each other; raises SpecError with the first contradiction."""
    check_unique("label group", (group.name for group in groups))
    check_unique("label", (label.name for label in labels))
    check_unique("label", (label.first_name for label in labels))
    for group in groups:
        _check_group(group)
    require(bool(labels), "an application has no labels", "declare at least one Label")
    names = [group.name for group in groups]
    for label in labels:
        _check_label(label, names)
        _check_follows(label, {other.name: other for other in labels})
        _check_number(label, labels)
    for label in labels:
        if label.follows is not None:
            _check_wait(label, groups, next(other for other in labels if other.name == label.follows))
    used = {label.group for label in labels}
    for name in sorted(names):
        message = f"label group {name!r} has no labels"
        require(name in used, message, "remove it, or name it as the group of a label")


def labels_differ(version: str, labels: Sequence[str], app_labels: Sequence[str]) -> str:
    """Return how the labels of a version differ from an application's, or an empty string.

    Examples:
        >>> labels_differ("version 121 of 'shop'", ["click", "like"], ["like", "click"])
        "version 121 of 'shop' has the labels click, like; this application has like, click"
    """
    if list(labels) == list(app_labels):
        return ""
    return f"{version} has the labels {', '.join(labels)}; this application has {', '.join(app_labels)}"


def window_settings_id(groups: Sequence[LabelGroup], labels: Sequence[Label]) -> str:
    """Return an id that changes when the same events would give other samples, apart from their features."""
    columns = [*map(declared, labels)]
    for column, label in zip(columns, labels, strict=True):
        for field in _MODEL_FIELDS:
            column.pop(field, None)
        if label.number is not None:  # what it is without an action is filled in when samples are read
            column["combine"], column["is_settled"] = label.number.combine, label.number.missing != "unlabelled"
    return fingerprint({"groups": [*map(declared, groups)], "labels": columns})


def _check_group(group: LabelGroup) -> None:
    check_name("label group", group.name)
    owner = f"label group {group.name!r}"
    for field in ("wait_s", "window_s"):
        value = getattr(group, field)
        valid = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= WINDOW_S_MAX
        help = f"use a whole number of seconds from 1 to {WINDOW_S_MAX} for {field}"
        require(valid, f"{owner}: {field} is {value!r}", help)
    message = f"{owner}: wait_s {group.wait_s} is longer than window_s {group.window_s}"
    help = "a row cannot wait longer than its window; set both to the same value for no corrections"
    require(group.wait_s <= group.window_s, message, help)


def _check_label(label: Label, groups: Sequence[str]) -> None:
    check_name("label", label.name)
    check_name("action", label.action)
    if label.was is not None:
        check_name("former label", label.was)
    message = f"label {label.name!r} is in group {label.group!r}, which is not declared"
    require(label.group in groups, message, f"the groups are {', '.join(groups) or 'none'}")
    rate = label.sample_rate
    valid = isinstance(rate, int | float) and not isinstance(rate, bool) and 0.0 < rate <= 1.0
    message = f"label {label.name!r}: sample_rate is {label.sample_rate!r}"
    require(valid, message, "sample_rate must be above 0 and at most 1")
    weight = label.loss_weight
    valid = isinstance(weight, int | float) and not isinstance(weight, bool) and 0.0 < weight <= LOSS_WEIGHT_MAX
    message = f"label {label.name!r}: loss_weight is {label.loss_weight!r}"
    require(valid, message, f"loss_weight must be above 0 and at most {LOSS_WEIGHT_MAX:,.0f}")


def _check_number(label: Label, labels: Sequence[Label]) -> None:
    if label.number is None:
        return
    owner = f"label {label.name!r}"
    check_number(owner, label.number)
    require(label.sample_rate == 1, f"{owner} is a number and has a sample_rate", "leave sample_rate out")
    followed = next((other.name for other in labels if other.follows == label.name), None)
    message = f"{owner} is a number, and follows {label.follows!r}"
    require(label.follows is None, message, "leave `follows` out: only labels that are positive or negative follow")
    message = f"{owner} is a number, and {followed!r} follows it"
    require(followed is None, message, "only labels that are positive or negative are followed")


def _check_wait(label: Label, groups: Sequence[LabelGroup], first: Label) -> None:
    by_name = {group.name: group for group in groups}
    wait_s, window_s = by_name[label.group].wait_s, by_name[first.group].window_s
    message = (
        f"label {label.name!r} is settled {wait_s} s after the impression, but {first.name!r}, which it follows, is "
        f"final only after {window_s} s"
    )
    require(wait_s >= window_s, message, f"put it into a group with a wait_s of at least {window_s}")


def _check_follows(label: Label, labels: Mapping[str, Label]) -> None:
    passed, at = [label.name], label
    while at.follows is not None:
        message = f"label {at.name!r} follows {at.follows!r}, which is not declared"
        require(at.follows in labels, message, f"the labels are {', '.join(labels)}")
        message = f"label {label.name!r} follows itself: {' follows '.join([*passed, at.follows])}"
        require(at.follows not in passed, message, "one of these labels must follow none: leave out its `follows`")
        at = labels[at.follows]
        passed.append(at.name)
