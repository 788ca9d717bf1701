"""Labels, and the groups of labels that share a window. All durations here are event time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamlearn.errors import SpecError
from streamlearn.features.names import check_name, check_unique, declared, fingerprint

__all__ = ["Label", "LabelGroup", "check_labels", "labels_differ", "window_settings_id"]

WINDOW_S_MAX = 90 * 86_400


@dataclass(frozen=True)
class LabelGroup:
    """Labels that are decided together.

    Attributes:
        name: Its name.
        wait_s: A row is emitted this long after the impression, with what is known then.
        window_s: An action later than `wait_s` and within `window_s` emits a correction; later still it is
            late. Equal to `wait_s`, there are no corrections.
    """

    name: str
    wait_s: int
    window_s: int


@dataclass(frozen=True)
class Label:
    """One thing a model predicts.

    Attributes:
        name: Its name in samples, metrics and scores.
        action: The action that makes it positive.
        group: The label group whose window it has.
        sample_rate: The share of negatives kept, chosen by a hash, so that replay keeps the same ones.
    """

    name: str
    action: str
    group: str
    sample_rate: float = 1.0


def check_labels(groups: Sequence[LabelGroup], labels: Sequence[Label]) -> None:
    """Refuse groups and labels that contradict each other.

    Raises:
        SpecError: With the first contradiction found.
    """
    check_unique("label group", (group.name for group in groups))
    check_unique("label", (label.name for label in labels))
    for group in groups:
        _check_group(group)
    if not labels:
        message = "an application has no labels"
        raise SpecError(message, help="declare at least one Label")
    names = [group.name for group in groups]
    for label in labels:
        _check_label(label, names)
    idle = set(names) - {label.group for label in labels}
    if idle:
        message = f"label group {sorted(idle)[0]!r} has no labels"
        raise SpecError(message, help="remove it, or name it as the group of a label")


def labels_differ(what: str, theirs: Sequence[str], mine: Sequence[str]) -> str:
    """How the labels of a version differ from an application's, in words; empty where they do not.

    Examples:
        >>> labels_differ("version 121 of 'shop'", ["click", "like"], ["like", "click"])
        "version 121 of 'shop' has the labels click, like; this application has like, click"
    """
    if list(theirs) == list(mine):
        return ""
    return f"{what} has the labels {', '.join(theirs)}; this application has {', '.join(mine)}"


def window_settings_id(groups: Sequence[LabelGroup], labels: Sequence[Label]) -> str:
    """Changes when the same events would give other samples; it is apart from the feature fingerprint."""
    said = {"groups": [declared(group) for group in groups], "labels": [declared(label) for label in labels]}
    return fingerprint(said)


def _check_group(group: LabelGroup) -> None:
    check_name("label group", group.name)
    for field in ("wait_s", "window_s"):
        value = getattr(group, field)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= WINDOW_S_MAX:
            message = f"label group {group.name!r}: {field} is {value!r}"
            raise SpecError(message, help=f"use a whole number of seconds from 1 to {WINDOW_S_MAX} for {field}")
    if group.wait_s > group.window_s:
        message = f"label group {group.name!r}: wait_s {group.wait_s} is longer than window_s {group.window_s}"
        raise SpecError(
            message, help="a row cannot wait longer than its window; set both to the same value for no corrections"
        )


def _check_label(label: Label, groups: Sequence[str]) -> None:
    check_name("label", label.name)
    check_name("action", label.action)
    if label.group not in groups:
        message = f"label {label.name!r} is in group {label.group!r}, which is not declared"
        raise SpecError(message, help=f"the groups are {', '.join(groups) or 'none'}")
    rate = label.sample_rate
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0.0 < rate <= 1.0:
        message = f"label {label.name!r}: sample_rate is {label.sample_rate!r}"
        raise SpecError(message, help="sample_rate must be above 0 and at most 1")
