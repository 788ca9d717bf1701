"""Graphs of small models with weights, and work for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from streamlearn.features import FeatureSpec
from streamlearn.models import DcnV2, DeepFm, Din, Graphs, Model, export_graphs, load_graphs
from streamlearn.models.logistic import Logistic
from streamlearn.models.tf_calls import Place
from streamlearn.serving.graphs.definitions import Definitions
from streamlearn.serving.graphs.dense import Dense
from streamlearn.serving.graphs.executables import CompileBudget, Executables
from streamlearn.serving.graphs.ladder import Ladder
from streamlearn.serving.lanes.lane_kind import Work
from streamlearn.serving.lanes.slab import Slab
from streamlearn.settings import ServingSettings
from tests.models.packed import Floats, Packed, filled, most_of_all, only_items

__all__ = ["LABELS", "MODELS", "SETTINGS", "Made", "export", "make", "named_weights", "work_of"]

LABELS = ("click", "long_view")
MODELS: dict[str, tuple[Callable[[], Model], Callable[[], FeatureSpec]]] = {
    "logistic": (Logistic, most_of_all),
    "deepfm": (lambda: DeepFm(hidden=(6,)), most_of_all),
    "dcn_v2": (lambda: DcnV2(hidden=(6,), rank=3), most_of_all),
    "din": (lambda: Din(hidden=(6,), attention=(3,)), most_of_all),
    "only_items": (lambda: DcnV2(hidden=(6,), rank=3), only_items),
}
SETTINGS = ServingSettings(users_buckets=[1, 4], candidates_buckets=[4, 16])


@dataclass
class Made:
    """Graphs, compiled for a ladder.

    Attributes:
        spec: What is packed.
        graphs: The graphs as TensorFlow loads them.
        executables: The graphs as they serve.
        ladder: What they were compiled for.
        place: Where.
    """

    spec: FeatureSpec
    graphs: Graphs
    executables: Executables
    ladder: Ladder
    place: Place

    def dense(self, seed: int = 1) -> tuple[list[Floats], Dense]:
        """Weights of some version: in order, and as they serve."""
        named = named_weights(self.graphs, seed)
        return list(named.values()), Dense(self.executables.definitions.described, named, self.executables.places)


def export(name: str, folder: Path) -> Path:
    """Export one of the models into a folder of its name."""
    make, features = MODELS[name]
    export_graphs(make(), features(), LABELS, folder / name)
    return folder / name


def make(
    name: str,
    folder: Path,
    *,
    compiles_max: int = 100,
    calls_min: int = 100,
    settings: ServingSettings | None = None,
    places: Sequence[Place] = (),
    has_long_index: bool = False,
) -> Made:
    """Load one that was exported; nothing is compiled yet."""
    graphs, places = load_graphs(folder / name), places or [Place("/CPU:0")]
    # Two lengths for one of them: the others take as many places in the same way.
    known = settings or msgspec.structs.replace(SETTINGS, lengths=[2, 5] if name == "din" else [])
    ladder = Ladder.of(known, graphs.described)
    definitions = Definitions(graphs, ladder.users_max, has_long_index=has_long_index)
    executables = Executables(definitions, places, CompileBudget(compiles_max), calls_min)
    return Made(MODELS[name][1](), graphs, executables, ladder, places[0])


def named_weights(graphs: Graphs, seed: int) -> dict[str, Floats]:
    """Weights by name, of numbers by chance."""
    notes = graphs.described.weights
    arrays = filled([np.zeros([size or 0 for size in one.shape]) for one in notes], seed)
    return dict(zip((one.name for one in notes), arrays, strict=True))


def work_of(dense: Any, inputs: Packed, users: int, candidates: int, length: int) -> Work:
    """Work of some requests, padded to so many rows and places."""
    user = [_padded(one, users, length if one.ndim == 3 else None) for one in inputs.user if one is not None]
    item = [_padded(one, candidates) for one in inputs.item if one is not None]
    return Work(dense, user, _padded(inputs.user_index, candidates), item)


def _padded(block: Any, rows: int, length: int | None = None) -> Any:
    shape: Sequence[int] = (rows, *([length] if length else []), *block.shape[(2 if length else 1) :])
    (array,) = Slab((tuple(shape), block.dtype)).arrays
    if length:
        places = min(length, block.shape[1])
        assert not block[:, places:].any()
        array[: len(block), :places] = block[:, :places]
    else:
        array[: len(block)] = block
    return array
