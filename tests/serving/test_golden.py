"""Golden requests: a version answers where it scores them as training did, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamlearn.errors import BadRecord, VersionRefused
from streamlearn.models import PackedSide, export_graphs, load_graphs
from streamlearn.models.logistic import Logistic
from streamlearn.models.tf_calls import Place
from streamlearn.samples import SampleCodec, golden_bytes, read_golden
from streamlearn.serving.graphs.definitions import Definitions
from streamlearn.serving.graphs.dense import Dense
from streamlearn.serving.graphs.executables import CompileBudget, Executables
from streamlearn.serving.graphs.golden import check_golden, score_samples
from streamlearn.serving.graphs.ladder import Ladder
from streamlearn.settings import ServingSettings
from streamlearn.settings.events import SampleSettings
from streamlearn.settings.tables import TableSettings
from streamlearn.table import Packing, TableSet, declared_tables
from streamlearn.testing import small_app, small_batch
from tests.models.packed import Packed, scores_of
from tests.serving.made import named_weights

REQUESTS, ROWS = 7, 40


def test_samples_are_scored_as_the_graphs_score_them_in_pieces_of_the_ladder(tmp_path: Path) -> None:
    app = small_app()
    batch = small_batch(app, REQUESTS, ROWS, seed=3)
    export_graphs(Logistic(), app.features, [one.name for one in app.labels], tmp_path / "graphs")
    graphs = load_graphs(tmp_path / "graphs")
    settings = ServingSettings(users_buckets=[1, 3], candidates_buckets=[4, 16])
    ladder = Ladder.of(settings, graphs.described)
    place = Place("/CPU:0")
    executables = Executables(Definitions(graphs, ladder.users_max), [place], CompileBudget(20))
    executables.compile_ladder(ladder)
    tables = TableSet(declared_tables(app.tables, TableSettings()))
    named = named_weights(graphs, 1)
    dense = Dense(executables.definitions.described, named, [place])
    found = score_samples(executables, ladder, dense, batch, pack=app.features.pack, tables=tables, at="newest")
    user, item = (Packing(side, tables) for side in (app.features.pack.user, app.features.pack.item))
    inputs = Packed(
        PackedSide(user.flat(batch.user, REQUESTS), user.sequences(batch.user, REQUESTS)),
        batch.request_index.astype(np.int32),
        PackedSide(item.flat(batch.item, ROWS), None),
    )
    wanted = scores_of(graphs, list(named.values()), inputs)
    assert np.ptp(wanted) > 0.1
    assert check_golden(found, wanted, 1e-5) < 1e-5
    assert executables.compiles == sum(1 for _ in ladder.buckets())
    # Weights of another version are found out.
    other = Dense(executables.definitions.described, named_weights(graphs, 2), [place])
    scores = score_samples(executables, ladder, other, batch, pack=app.features.pack, tables=tables, at="newest")
    with pytest.raises(VersionRefused, match=r"golden sample \d+ is scored"):
        check_golden(scores, wanted, 1e-5)


def test_a_difference_is_measured_in_shares_of_large_logits() -> None:
    logits = np.array([[0.5, 100.0]], np.float32)
    assert check_golden(logits + np.array([[9e-6, 9e-4]], np.float32), logits, 1e-5) < 1e-5
    with pytest.raises(VersionRefused, match="1 of 2 scores"):
        check_golden(logits + np.array([[2e-5, 9e-4]], np.float32), logits, 1e-5)
    with pytest.raises(VersionRefused, match="for label 1"):
        check_golden(logits + np.array([[0, 2e-3]], np.float32), logits, 1e-5)
    assert check_golden(np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32), 1e-5) == 0
    # A number in milliseconds differs by more than a logit does.
    assert check_golden(logits + np.array([[0, 9e-2]], np.float32), logits, 1e-5, [1.0, 1e4]) < 1e-5


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(odd: float) -> None:
    with pytest.raises(VersionRefused, match="golden sample 1"):
        check_golden(np.array([[0.0], [odd]], np.float32), np.zeros((2, 1), np.float32), 1.0)
    with pytest.raises(VersionRefused, match="golden sample 0"):
        check_golden(np.zeros((2, 1), np.float32), np.array([[odd], [0.0]], np.float32), 1.0)


def test_golden_requests_that_are_damaged_are_refused() -> None:
    app = small_app()
    codec = SampleCodec(app, SampleSettings())
    batch = small_batch(app, 2, 5, seed=3)
    entries = golden_bytes(codec, batch, np.zeros((5, 2), np.float32))
    assert len(read_golden(codec, entries)[0]) == 5
    for odd in (b"", entries["logits"][:-1], entries["logits"][:9]):
        with pytest.raises(BadRecord, match="golden requests cannot be read"):
            read_golden(codec, entries | {"logits": odd})
    with pytest.raises(BadRecord, match="cannot be read: KeyError"):
        read_golden(codec, {"logits": entries["logits"]})
    other = golden_bytes(codec, batch, np.zeros((4, 2), np.float32))
    with pytest.raises(BadRecord, match="5 golden samples of 2 labels"):
        read_golden(codec, entries | {"logits": other["logits"]})
