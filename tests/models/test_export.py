"""Exported graphs: they score as their model does, are the same bytes from every process, and need nothing of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from streamlearn.errors import BadRecord, UsageError
from streamlearn.models import DcnV2, Din, Graphs, PackedSide, export_graphs, load_graphs
from streamlearn.versions.format.graphs import graph_id_of
from tests.models.exports import EXPORTED, LABELS
from tests.models.packed import filled, most_of_all, packed, scores_of

ROOT = Path(__file__).parents[2]
PROCESS_S_MAX = 900

# A program that knows TensorFlow and NumPy, and nothing else.
PLAIN = """
import json, sys
import numpy as np
import tensorflow as tf
given = np.load(sys.argv[2])
loaded = tf.saved_model.load(sys.argv[1])
said = json.load(open(sys.argv[1] + "/graphs.json"))
weights = [tf.constant(given[one["name"]]) for one in said["weights"]]
user = loaded.user(*weights, *(tf.constant(given[one["name"]]) for one in said["user"]["inputs"]))
more = {"user_" + name: tensor for name, tensor in user.items()}
names = [one["name"] for one in said["score"]["inputs"]]
inputs = [more[name] if name in more else tf.constant(given[name]) for name in names]
scores = loaded.score(*weights, *inputs)["scores"]
by_name = dict(zip([f"weight_{at}" for at in range(len(weights))], weights))
by_name |= dict(zip(names, inputs))
signed = loaded.signatures["score"](**by_name)["scores"]
np.savez(sys.argv[3], scores=scores, signed=signed)
print(json.dumps([name for name in sys.modules if name.split(".")[0] == "streamlearn"] + list(loaded.variables)
    if hasattr(loaded, "variables") else []))
"""


def weights_of(graphs: Graphs) -> list[Any]:
    return filled([np.zeros([size or 0 for size in one.shape]) for one in graphs.described.weights])


def compiled(graphs: Graphs) -> Graphs:
    """The graphs, compiled by XLA for each shape of inputs."""

    def whole(graph: Any) -> Any:
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name.split(":")[0]) for tensor in graph.inputs]
        return tf.function(lambda *given: graph(*given), jit_compile=True, autograph=False).get_concrete_function(
            *specs
        )

    return Graphs(graphs.described, graphs._user and whole(graphs._user), whole(graphs._score))


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_graphs_score_as_the_model_does(exported: Path, name: str) -> None:
    make, features = EXPORTED[name]
    spec, model = features(), make()
    model.build(spec, LABELS, 0)
    graphs = load_graphs(exported / name)
    weights, inputs = weights_of(graphs), packed(spec)
    scores = scores_of(graphs, weights, inputs)
    np.testing.assert_allclose(scores, scores_of(model, weights, inputs), rtol=1e-5, atol=1e-5)
    by_xla = scores_of(compiled(load_graphs(exported / name)), weights, inputs)
    # In bfloat16 XLA may round a sum otherwise: one digit of its terms, which are up to 4, differs by 2**-6.
    rtol, atol = (0.02, 2**-6) if name == "din" else (1e-4, 1e-4)
    np.testing.assert_allclose(by_xla, scores, rtol=rtol, atol=atol)


@pytest.fixture
def as_written() -> Iterator[None]:
    """Graphs run as they are: TensorFlow's optimiser adds in an order that depends on the names of nodes."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize("name", EXPORTED)
def test_exported_graphs_are_to_the_bit_what_the_model_computes(exported: Path, name: str) -> None:
    make, features = EXPORTED[name]
    spec, model = features(), make()
    model.build(spec, LABELS, 0)
    graphs = load_graphs(exported / name)
    for seed in range(3):
        weights, inputs = filled(weights_of(graphs), seed), packed(spec, seed=seed)
        assert np.array_equal(scores_of(graphs, weights, inputs), scores_of(model, weights, inputs))


def test_the_description_says_all_that_a_call_needs(exported: Path) -> None:
    described = load_graphs(exported / "din").described
    spec = most_of_all()
    pack = json.loads(json.dumps(spec.pack.to_json()))
    assert (described.features, described.labels, described.pack) == (spec.fingerprint, LABELS, pack)
    model = Din(hidden=(6,), attention=(3,))
    weights = model.build(spec, LABELS, 0)
    assert [one.name for one in described.weights] == list(model.weight_names)
    assert [one.shape for one in described.weights] == [tuple(one.shape) for one in weights]
    assert described.weights_bytes == sum(one.numpy().nbytes for one in weights)
    assert described.user is not None
    assert [(one.name, one.shape) for one in described.user.inputs] == [
        ("user_flat", (None, 7)), ("user_sequence", (None, None, 7)),
    ]  # fmt: skip
    assert [(one.name, one.shape) for one in described.user.outputs] == [
        ("flat", (None, 6)), ("sequence", (None, None, 10)),
    ]  # fmt: skip
    assert [(one.name, one.dtype) for one in described.score.inputs] == [
        ("user_flat", "float32"), ("user_sequence", "float32"), ("user_index", "int32"), ("item_flat", "float32"),
    ]  # fmt: skip
    assert [(one.name, one.shape) for one in described.score.outputs] == [("scores", (None, 2))]


def test_without_a_user_side_there_is_no_user_graph(exported: Path) -> None:
    graphs = load_graphs(exported / "only_items")
    assert graphs.described.user is None
    assert [one.name for one in graphs.described.score.inputs] == ["user_index", "item_flat"]
    assert graphs.user([], PackedSide(None, None)) == PackedSide(None, None)


def test_histories_may_have_fewer_places_where_the_model_says_so(exported: Path) -> None:
    spec = most_of_all()
    inputs = packed(spec)
    short = inputs._replace(user=inputs.user._replace(sequence=inputs.user.sequence[:, :3]))
    for name in ("din", "dcn_v2"):
        graphs = compiled(load_graphs(exported / name))
        weights = weights_of(graphs)
        padded = short.user.sequence, np.zeros_like(inputs.user.sequence[:, 3:])
        longer = inputs._replace(user=inputs.user._replace(sequence=np.concatenate(padded, axis=1)))
        few, many = (scores_of(graphs, weights, one) for one in (short, longer))
        np.testing.assert_allclose(few, many, rtol=0.02, atol=1e-4)
    keras = load_graphs(exported / "keras").described.user
    assert keras is not None
    assert keras.inputs[1].shape == (None, 5, 7)


def test_a_process_with_another_history_writes_the_same_bytes(exported: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.models.exports", str(tmp_path)]
    # Without optimisation, which costs most, XLA says the same of what it takes.
    seeded = os.environ | {
        "PYTHONHASHSEED": "4711", "PYTHONPATH": str(ROOT), "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=seeded, capture_output=True, text=True, timeout=PROCESS_S_MAX)
    assert done.returncode == 0, done.stderr
    for name in EXPORTED:
        assert files_of(tmp_path / name) == files_of(exported / name), name
        assert graph_id_of(tmp_path / name) == graph_id_of(exported / name)
    assert len({graph_id_of(exported / name) for name in EXPORTED}) == len(EXPORTED)


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_exported_twice_by_one_process_it_is_the_same_graph(exported: Path, tmp_path: Path) -> None:
    make, features = EXPORTED["keras"]
    model = make()
    for again in ("once", "twice"):
        export_graphs(model, features(), LABELS, tmp_path / again, seed=9)
        assert files_of(tmp_path / again) == files_of(exported / "keras")
    other = DcnV2(hidden=(6,), rank=3, dense_scale="none")
    export_graphs(other, most_of_all(), LABELS, tmp_path / "other")
    assert graph_id_of(tmp_path / "other") != graph_id_of(exported / "dcn_v2")


def test_files_hold_no_weights_and_tell_nothing_of_the_process(exported: Path) -> None:
    for name in EXPORTED:
        files = files_of(exported / name)
        assert sorted(files) == [
            "graphs.json", "saved_model.pb", "variables/variables.data-00000-of-00001", "variables/variables.index",
        ]  # fmt: skip
        assert b"__inference" not in files["saved_model.pb"]
        assert str(ROOT).encode() not in b"".join(files.values())
        assert len(files["variables/variables.data-00000-of-00001"]) < 1_000


def test_plain_tensorflow_loads_and_calls_them(exported: Path, tmp_path: Path) -> None:
    graphs, inputs = load_graphs(exported / "deepfm"), packed(most_of_all())
    weights = weights_of(graphs)
    given = dict(zip((one.name for one in graphs.described.weights), weights, strict=True))
    given |= {"user_flat": inputs.user.flat, "user_sequence": inputs.user.sequence}
    np.savez(tmp_path / "given.npz", user_index=inputs.user_index, item_flat=inputs.item.flat, **given)
    command = [sys.executable, "-c", PLAIN, str(exported / "deepfm"), "given.npz", "scores.npz"]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True, timeout=PROCESS_S_MAX)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
    found = np.load(tmp_path / "scores.npz")
    wanted = scores_of(graphs, weights, inputs)
    assert np.array_equal(found["scores"], wanted)
    assert np.array_equal(found["signed"], wanted)


def test_weights_of_a_version_are_brought_into_order(exported: Path) -> None:
    graphs = load_graphs(exported / "deepfm")
    weights = weights_of(graphs)
    named = dict(zip((one.name for one in graphs.described.weights), weights, strict=True))
    shuffled = {name: named[name] for name in sorted(named, reverse=True)}
    assert all(np.array_equal(one, two) for one, two in zip(graphs.weights(shuffled), weights, strict=True))
    with pytest.raises(UsageError, match=r"1 weights do not match the graphs: 'bias' of shape \(3,\)"):
        graphs.weights(named | {"bias": np.zeros(3, np.float32)})
    with pytest.raises(UsageError, match="'bias' of shape none"):
        graphs.weights({name: one for name, one in named.items() if name != "bias"})


def test_nothing_is_written_over(exported: Path) -> None:
    before = files_of(exported / "logistic")
    make, features = EXPORTED["logistic"]
    with pytest.raises(UsageError, match=r"logistic exists already"):
        export_graphs(make(), features(), LABELS, exported / "logistic")
    assert files_of(exported / "logistic") == before


def test_what_is_no_folder_of_graphs_is_refused(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRecord, match=r"has no exported graphs: graphs\.json is missing"):
        load_graphs(tmp_path)
    said = (exported / "logistic" / "graphs.json").read_bytes()
    (tmp_path / "graphs.json").write_bytes(said[:-20])
    with pytest.raises(BadRecord, match="does not describe graphs"):
        load_graphs(tmp_path)
    (tmp_path / "graphs.json").write_bytes(said.replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(BadRecord, match="has format 2"):
        load_graphs(tmp_path)
    (tmp_path / "graphs.json").write_bytes(said)
    with pytest.raises(BadRecord, match="no graphs TensorFlow can load"):
        load_graphs(tmp_path)
