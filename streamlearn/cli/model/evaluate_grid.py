"""Variants of an application that `evaluate` compares: models and values of settings, and the table to choose from."""

from __future__ import annotations

import threading
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

_VARIANTS_MAX = 100
Row = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """An application with one of the models and one value of each setting; `facts` names what differs."""

    folder: AppFolder
    facts: dict[str, str]

    @property
    def lines(self) -> list[str]:
        """The lines for app.py and app.toml that choose it."""
        return [
            f'app.py: model="{value}"' if name == "model" else f"app.toml: {name} = {value}"
            for name, value in self.facts.items()
        ]


def variants_of(app: Path, set_: Sequence[str], models: str, grids: Sequence[str]) -> list[Variant]:
    """Return every combination of models and values; `grids` has texts of the form NAME=VALUE,VALUE.

    Raises:
        UsageError: A text has another form, or there are too many combinations.
    """
    from streamlearn.apps import load_app

    axes = [("model", _parts(models))] if models else []
    for text in grids:
        name, equals, values = text.partition("=")
        if not (equals and name.strip() and _parts(values)):
            message = f"{text!r} is not NAME=VALUE,VALUE"
            raise UsageError(message, help="for example --grid tables.rate=0.05,0.1")
        axes.append((name.strip(), _parts(values)))
    names, combinations = [name for name, _ in axes], [*product(*(values for _, values in axes))]
    if len(combinations) > _VARIANTS_MAX:
        message = f"{len(combinations)} combinations are more than {_VARIANTS_MAX}"
        raise UsageError(message, help="compare fewer values at once")
    variants = []
    for combination in combinations:
        facts = dict(zip(names, combination, strict=True))
        folder = load_app(app, (*set_, *(f"{name}={value}" for name, value in facts.items() if name != "model")))
        model = facts.get("model", folder.app.model)
        variants.append(Variant(replace(folder, app=replace(folder.app, model=model)), facts))
    return variants


def compared(
    variants: Sequence[Variant], request: SplitRequest, stop: threading.Event, *, passes: int, until_offset: str
) -> Iterator[tuple[Variant, Pass]]:
    """Evaluate each variant, and yield it with its last pass; ends early if `stop` is set."""
    from streamlearn.trainer import evaluate

    for variant in variants:
        result = evaluate(variant.folder, request, stop, passes=passes, until_offset=until_offset)
        if len(result.passes) < passes:
            return
        yield variant, result.passes[-1]


def best_of(done: Sequence[tuple[Variant, Pass]]) -> Variant | None:
    """Return the variant whose held-out rows have the lowest normalised entropy, as the mean of all labels."""
    entropies = []
    for variant, last in done:
        found = [score.normalised_entropy for score in last.held_out.scores if not score.segment]
        known = [one for one in found if one is not None]
        if known and len(known) == len(found):
            entropies.append((sum(known) / len(known), variant))
    return min(entropies, key=lambda one: one[0])[1] if entropies else None


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
