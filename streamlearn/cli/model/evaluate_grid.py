"""Variants of an application that `evaluate` compares: models and values of settings, and the table to choose from."""

from __future__ import annotations

import json
import threading
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamlearn.errors import UsageError

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.trainer.evaluation import Pass
    from streamlearn.trainer.intake.split import SplitRequest

__all__ = ["Variant", "best_of", "compared", "variants_of"]

_VARIANTS_MAX, _MODEL = 100, "model"


@dataclass(frozen=True)
class Variant:
    """An application with one of the models and one value of each setting; `facts` names what differs."""

    folder: AppFolder
    facts: dict[str, str]

    @property
    def lines(self) -> list[str]:
        """The lines for app.py and app.toml that choose it."""
        lines = []
        for name, value in self.facts.items():
            section, _, key = name.partition(".")
            line = f"app.toml, section [{section}]: {key} = {_toml(value)}"
            lines.append(f'app.py: model="{value}"' if name == _MODEL else line)
        return lines


def variants_of(app: Path, set_: Sequence[str], models: str, grids: Sequence[str]) -> list[Variant]:
    """Return every combination of models and values; `grids` has texts of the form NAME=VALUE,VALUE.

    Raises:
        UsageError: A text has another form, or there are too many combinations.
    """
    from streamlearn.apps import load_app

    axes = [(_MODEL, _parts(models))] if models else []
    for text in grids:
        name, equals, values = text.partition("=")
        if not (equals and name.strip() and _parts(values)):
            message = f"{text!r} is not NAME=VALUE,VALUE"
            raise UsageError(message, help="for example --grid tables.rate=0.05,0.1")
        if name.strip() in (_MODEL, *(known for known, _ in axes)):
            message = f"{name.strip()} is given twice, or has an option of its own"
            raise UsageError(message, help="give each setting once, and models by --model")
        axes.append((name.strip(), _parts(values)))
    names, combinations = [name for name, _ in axes], [*product(*(values for _, values in axes))]
    if len(combinations) > _VARIANTS_MAX:
        message = f"{len(combinations)} combinations are more than {_VARIANTS_MAX}"
        raise UsageError(message, help="compare fewer values at once")
    variants = []
    for combination in combinations:
        facts = dict(zip(names, combination, strict=True))
        folder = load_app(app, (*set_, *(f"{name}={value}" for name, value in facts.items() if name != _MODEL)))
        model = facts.get(_MODEL, folder.app.model)
        variants.append(Variant(replace(folder, app=replace(folder.app, model=model)), facts))
    return variants


def compared(
    variants: Sequence[Variant], request: SplitRequest, stop: threading.Event, *, passes: int, **options: Any
) -> Iterator[tuple[Variant, Pass]]:
    """Evaluate each variant, and yield it with its last pass; ends early if `stop` is set. See `evaluate`."""
    from streamlearn.trainer import evaluate

    for variant in variants:
        result = evaluate(variant.folder, request, stop, passes=passes, **options)
        if len(result.passes) < passes:
            return
        yield variant, result.passes[-1]


def best_of(done: Sequence[tuple[Variant, Pass]]) -> Variant | None:
    """Return the variant whose held-out rows have the lowest normalised entropy, as the mean of all labels.

    Of a label that is a number, the mean absolute error counts instead, as a share of that of the first variant.
    """
    errors, first = [], list[float]()
    for variant, last in done:
        scores = [score for score in last.held_out.scores if not score.segment]
        maes = [score.mae for score in scores if score.mae is not None]
        first = first or [mae or 1.0 for mae in maes]
        found = [score.normalised_entropy for score in scores if score.mae is None]
        known = [one for one in found if one is not None] + [mae / one for mae, one in zip(maes, first, strict=True)]
        if known and len(known) == len(scores):
            errors.append((sum(known) / len(known), variant))
    return min(errors, key=lambda one: one[0])[1] if errors else None


def _parts(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _toml(value: str) -> str:
    """Return a value as it stands in TOML: texts in quotes."""
    try:
        tomllib.loads(f"x = {value}")
    except tomllib.TOMLDecodeError:
        return json.dumps(value)
    return value
