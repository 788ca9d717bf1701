"""Warm start: a changed application begins with what another model learned, as far as it is of use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamlearn.apps import App
from streamlearn.errors import UsageError
from streamlearn.features import Slot
from streamlearn.trainer.warm_start import source_of
from streamlearn.versions import Chain
from tests.trainer.runs import run, state_of, store_of
from tests.trainer.stream import learnable_app, learnable_folder, messages_of, write_messages


def changed(app: App) -> App:
    """Another name, one more slot of an item, and the tags on a table of another length."""
    tags, rest = app.features.slots[-1], app.features.slots[:-1]
    slots = (*rest, replace(tags, dim=6), Slot("mood", "item", dim=8))
    return replace(app, name="changed", features=replace(app.features, slots=slots))


def test_rows_of_tables_that_both_have_are_carried_over_with_their_optimizers_state(tmp_path: Path) -> None:
    old = learnable_folder(tmp_path, {"trainer": {"step_rows": 64}})
    write_messages(old, messages_of(old.app, 12))
    run(old)
    learned = state_of(old)
    app = changed(learnable_app())
    new = learnable_folder(tmp_path, {"trainer": {"step_rows": 64}}, app)
    write_messages(new, messages_of(app, 1))
    source = source_of(store_of(old), "learnable")
    report = run(new, begin_with=source)
    carried = report.carried
    assert carried is not None
    assert (carried.model, carried.version) == ("learnable", source.version)
    assert dict(carried.rows) == {"main": len(learned["main.keys"]) // 8}
    assert carried.rows["main"] > 300
    assert carried.fresh == {"tags": "its dim is 6 here, but 4 there"}
    # The layer over everything is of another width; those after it are not.
    assert carried.fresh_weights == ("weight_0",)
    assert carried.weights == ("weight_1", "weight_2", "weight_3")
    first = Chain.find(store_of(new), "changed").links[0].manifest
    begun = state_of(new, first.version)
    for name in ("main.keys", "main.rows", "main.state", "dense.weight_2"):
        assert begun[name] == learned[name], name
    assert begun["dense.weight_0"] != learned["dense.weight_0"]
    assert not np.frombuffer(begun["dense_optimizer.slot0"], np.float32).any()
    assert report.version > first.version
    assert state_of(new)["main.rows"] != begun["main.rows"]


def test_it_is_for_the_first_version_alone(tmp_path: Path) -> None:
    folder = learnable_folder(tmp_path, {"trainer": {"step_rows": 64}})
    write_messages(folder, messages_of(folder.app, 4))
    run(folder)
    with pytest.raises(UsageError, match="already has versions"):
        run(folder, begin_with=source_of(store_of(folder), "learnable:1"))
    with pytest.raises(UsageError, match="does not name a version"):
        source_of(store_of(folder), "learnable:newest")
    with pytest.raises(UsageError, match=r"version 'nobody'.*/store has no committed version") as refused:
        source_of(store_of(folder), "nobody")
    assert "this application's store" in refused.value.help
    with pytest.raises(UsageError, match="version 99 does not exist; the newest is"):
        source_of(store_of(folder), "learnable:99")
