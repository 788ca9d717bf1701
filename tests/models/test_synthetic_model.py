"""The model that knows the shape of the synthetic world: it sums what it says, and can be served."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamlearn.apps import AppFolder, load_app
from streamlearn.models import PackedSide, export_graphs, load_graphs, model_of
from tests.models.packed import Floats, Packed, filled, packed, scores_of

__all__: list[str] = []

_LABELS = ["click", "long_view"]


@pytest.fixture(scope="module")
def folder() -> AppFolder:
    return load_app(Path(__file__).parents[2] / "examples" / "synthetic")


def _inputs(folder: AppFolder) -> Packed:
    """Numbers by chance; the second user's history has the first candidate's category in two of its places."""
    pack = folder.app.features.pack
    found = packed(folder.app.features)
    at = {column.name: column for column in (*pack.item.flat, *pack.user.sequence)}
    category, recent = at["category"], at["recent_categories"]
    row = found.item.flat[0, category.at : category.at + category.width]
    sequence = found.user.sequence.copy()
    sequence[1, [2, 5], recent.at : recent.at + recent.width] = row
    # A row that has learned a step more is the same key's.
    sequence[1, 5, recent.at : recent.at + recent.width] *= 1.01
    return _with_history(found, sequence)


def _with_history(inputs: Packed, sequence: Floats) -> Packed:
    return Packed(PackedSide(inputs.user.flat, sequence), np.array([1, 1, 2, 0, 0, 1, 2], np.int32), inputs.item)


def test_a_score_is_the_sum_of_own_numbers_products_and_matches(folder: AppFolder) -> None:
    features, model, inputs = folder.app.features, model_of(folder), _inputs(folder)
    weights = filled(model.build(features, _LABELS, 0))
    by_name = dict(zip(model.weight_names, weights, strict=True))  # type: ignore[attr-defined]
    user = {one.name: inputs.user.flat[:, one.at : one.at + one.width] for one in features.pack.user.flat}
    user = {name: column[inputs.user_index] for name, column in user.items()}
    item = {one.name: inputs.item.flat[:, one.at : one.at + one.width] for one in features.pack.item.flat}
    columns = user | item
    expected = np.zeros((7, 2)) + by_name["bias"]
    for slot in features.slots:
        if slot.pooling != "sequence":
            expected += columns[slot.name][:, :2]
    for one, two in (("cohort", "category"), ("device", "length_band"), ("category", "length_band")):
        expected += columns[one][:, 2:] * columns[two][:, 2:] @ by_name[f"{one}_{two}"]
    expected += columns["taste"] * columns["quality"] @ by_name["taste_quality"]
    # The first candidate alone is the second user's and of the category that stands twice in the history.
    expected[0] += 2 * by_name["matches"][0]
    np.testing.assert_allclose(scores_of(model, weights, inputs), expected, rtol=1e-4, atol=1e-4)


def test_its_exported_graphs_score_as_it_does(folder: AppFolder, tmp_path: Path) -> None:
    model, inputs = model_of(folder), _inputs(folder)
    export_graphs(model, folder.app.features, _LABELS, tmp_path / "graphs")
    weights = filled(model.build(folder.app.features, _LABELS, 0))
    scores = scores_of(load_graphs(tmp_path / "graphs"), weights, inputs)
    np.testing.assert_allclose(scores, scores_of(model, weights, inputs), rtol=1e-4, atol=1e-4)
