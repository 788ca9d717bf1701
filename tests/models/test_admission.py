"""What a store may not bring into a process as a graph: everything but functions that compute."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

from streamlearn.apps import load_app
from streamlearn.errors import BadRecord
from streamlearn.models import admission, export_graphs, load_graphs, model_of
from streamlearn.models.operations import ALLOWED, CALLING, functions_of
from tests.models.exports import EXPORTED

ROOT = Path(__file__).parents[2]


@pytest.fixture
def graphs(exported: Path, tmp_path: Path) -> Path:
    """Graphs that may be changed."""
    return Path(shutil.copytree(exported / "deepfm", tmp_path / "graphs"))


class CopyOnLoad(tf.saved_model.experimental.TrackableResource):  # type: ignore[misc]
    """A resource whose initializer copies a file."""

    def __init__(self, source: Path, target: Path) -> None:
        super().__init__()
        self._source, self._target = str(source), str(target)

    def _create_resource(self) -> tf.Tensor:
        return tf.raw_ops.HashTableV2(key_dtype=tf.int64, value_dtype=tf.int64)

    def _initialize(self) -> None:
        tf.io.write_file(self._target, tf.io.read_file(self._source))


def save(folder: Path, module: tf.Module, score: Callable[..., Any]) -> None:
    """Save a module in the place of a model's graphs, so that only the description is theirs."""
    module.score = tf.function(score, input_signature=[tf.TensorSpec([None], tf.float32)])
    module.user = module.score
    description = (folder / "graphs.json").read_bytes()
    shutil.rmtree(folder)
    tf.saved_model.save(module, str(folder))
    shutil.rmtree(folder / "assets", ignore_errors=True)
    (folder / "fingerprint.pb").unlink()
    (folder / "graphs.json").write_bytes(description)


# Twice, because what is asked is whether the next one to load them in this process writes the file.
_LOAD = """
import sys
from pathlib import Path
from streamlearn.models.tensorflow_load import load_tensorflow
load_tensorflow()
import tensorflow as tf
from streamlearn.models import load_graphs
graphs, stolen = map(Path, sys.argv[1:])
for _ in range(2):
    tf.saved_model.load(str(graphs))
    print(stolen.read_text())
    stolen.unlink()
load_graphs(graphs)
"""


def test_a_graph_that_copies_a_file_when_it_is_loaded_is_refused_and_no_file_is_written(
    graphs: Path, tmp_path: Path
) -> None:
    secret, stolen = tmp_path / "secret", tmp_path / "stolen"
    secret.write_text("of this machine")
    module = tf.Module()
    module.resource = CopyOnLoad(secret, stolen)
    save(graphs, module, lambda one: one)
    # In another process, as a node does, which knows nothing of the class.
    command = [sys.executable, "-c", _LOAD, str(graphs), str(stolen)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=ROOT)
    assert done.stdout.splitlines() == ["of this machine"] * 2, "TensorFlow does it by itself"
    assert done.returncode != 0
    assert "BadRecord" in done.stderr
    assert "an object that is a resource" in done.stderr
    assert not stolen.exists()


def test_a_graph_that_writes_a_file_when_it_is_called_is_refused_by_operation_and_function(
    graphs: Path, tmp_path: Path
) -> None:
    def score(one: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.io.write_file(str(tmp_path / "stolen"), "text")]):
            return one + 1

    save(graphs, tf.Module(), score)
    with pytest.raises(BadRecord, match=r"they hold operation WriteFile in function \S*score\S*") as refused:
        load_graphs(graphs)
    assert "who wrote this one to the store" in refused.value.help
    assert not (tmp_path / "stolen").exists()


def let_another_be_called(graphs: Path, file: Path) -> None:
    """Let TensorFlow call a function that saves in the place of one that computes, by attributes of both."""
    takes = [tf.TensorSpec([None], tf.float32)]
    harmless = tf.function(lambda one: one + 1, input_signature=takes)

    def saves(one: tf.Tensor) -> tf.Tensor:
        written = tf.raw_ops.SaveV2(prefix=str(file), tensor_names=["x"], shape_and_slices=[""], tensors=[one])
        with tf.control_dependencies([written]):
            return one + 1

    module = tf.Module()
    module.harmful = tf.function(saves, input_signature=takes)
    save(graphs, module, lambda one: harmless(one))

    def swap(meta: Any) -> None:
        objects = meta.object_graph_def
        [harmful] = [name for name in objects.concrete_functions if "saves" in name]
        del objects.concrete_functions[harmful]
        for node in objects.nodes:
            if harmful in (*node.function.concrete_functions, node.bare_concrete_function.concrete_function_name):
                node.user_object.CopyFrom(objects.nodes[0].user_object)
            kept = [one for one in node.children if one.local_name != "harmful"]
            node.ClearField("children")
            node.children.extend(kept)
        for one in meta.graph_def.library.function:
            if one.signature.name == harmful or [node.op for node in one.node_def] == ["Const", "AddV2", "Identity"]:
                one.attr["api_implements"].s = b"the same"
                one.attr["api_preferred_device"].s = b"CPU" if one.signature.name == harmful else b"GPU"

    changed(swap)(graphs)


def test_a_graph_whose_attributes_let_another_function_be_called_is_refused(graphs: Path, tmp_path: Path) -> None:
    file = tmp_path / "stolen"
    let_another_be_called(graphs, file)
    tf.saved_model.load(str(graphs)).score(tf.constant([1.0]))
    written = list(tmp_path.glob("stolen*"))
    assert written, "TensorFlow does it by itself"
    for one in written:
        one.unlink()
    with pytest.raises(BadRecord, match=r"they hold the attribute api_implements of function \S+"):
        load_graphs(graphs)


def reads_a_file(one: tf.Tensor) -> tf.Tensor:
    return one + tf.cast(tf.strings.length(tf.io.read_file("/etc/hostname")), tf.float32)


def calls_python(one: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.numpy_function(lambda given: given, [one], tf.float32), [None])


def within_a_branch(one: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.reduce_sum(one) > 0, lambda: reads_a_file(one), lambda: one)


def reads_a_region(one: tf.Tensor) -> tf.Tensor:
    return one + tf.raw_ops.ImmutableConst(dtype=tf.float32, shape=[1], memory_region_name="/etc/hostname")


def restores(one: tf.Tensor) -> tf.Tensor:
    return one + tf.raw_ops.RestoreV2(prefix="/x", tensor_names=["y"], shape_and_slices=[""], dtypes=[tf.float32])[0]


@pytest.mark.parametrize(
    ("score", "operation"),
    [
        (reads_a_file, "ReadFile"),
        (calls_python, "PyFunc"),
        (within_a_branch, "ReadFile"),
        (reads_a_region, "ImmutableConst"),
        (restores, "RestoreV2"),
    ],
)
def test_operations_that_do_more_than_compute_are_refused(
    graphs: Path, score: Callable[[Any], Any], operation: str
) -> None:
    save(graphs, tf.Module(), score)
    with pytest.raises(BadRecord, match=f"operation {operation} in function"):
        load_graphs(graphs)


def variable(graphs: Path) -> None:
    module = tf.Module()
    module.kept = tf.Variable(1.0)
    save(graphs, module, lambda one: one)


def asset(graphs: Path) -> None:
    (graphs / "assets").mkdir()
    (graphs / "assets" / "words.txt").write_text("one")


def other_form(graphs: Path) -> None:
    """What TensorFlow takes before saved_model.pb, where it is there."""
    (graphs / "saved_model.cpb").write_bytes((graphs / "saved_model.pb").read_bytes())


def link(graphs: Path) -> None:
    (graphs / "saved_model.pb").rename(graphs.parent / "elsewhere.pb")
    (graphs / "saved_model.pb").symlink_to(graphs.parent / "elsewhere.pb")


def changed(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def damage(graphs: Path) -> None:
        saved = saved_model_pb2.SavedModel.FromString((graphs / "saved_model.pb").read_bytes())
        change(saved.meta_graphs[0])
        (graphs / "saved_model.pb").write_bytes(saved.SerializeToString())

    return damage


def save_when_called(meta: Any) -> None:
    """Let a function that scores call the one that saves."""
    functions = {one.signature.name: one for one in meta.graph_def.library.function}
    [saver] = [name for name, one in functions.items() if any(node.op == "SaveV2" for node in one.node_def)]
    node = functions[next(iter(meta.object_graph_def.concrete_functions))].node_def.add(op="PartitionedCall")
    node.attr["f"].func.name = saver


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (variable, "an object that is a variable"),
        (asset, "the file assets/words.txt"),
        (other_form, "the file saved_model.cpb"),
        (link, "the file saved_model.pb"),
        (changed(lambda meta: meta.ClearField("object_graph_def")), "1 graphs; expected exactly one, with objects"),
        (changed(lambda meta: meta.asset_file_def.add(filename="../x")), "the asset '../x'"),
        (changed(lambda meta: meta.graph_def.node.add(op="ReadFile")), "operation ReadFile in the graph itself"),
        (changed(lambda meta: setattr(meta.object_graph_def.nodes[0].user_object, "identifier", "x")), "of type 'x'"),
        (changed(lambda meta: setattr(meta.object_graph_def.nodes[0], "registered_name", "x")), "its own, 'x'"),
        (
            changed(lambda meta: meta.object_graph_def.nodes[0].children.add(local_name="_initialize", node_id=1)),
            "the function _initialize",
        ),
        (changed(save_when_called), "operation ShardedFilename in function|operation \\w+ in function"),
        (lambda graphs: (graphs / "saved_model.pb").write_bytes(b"\xff\xff"), "no graphs TensorFlow can load"),
    ],
)
def test_whatever_an_exported_graph_never_has_is_refused(
    graphs: Path, damage: Callable[[Path], None], said: str
) -> None:
    load_graphs(graphs)
    damage(graphs)
    with pytest.raises(BadRecord, match=said):
        load_graphs(graphs)


def test_a_graph_beyond_its_bound_is_not_parsed(graphs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "GRAPH_BYTES_MAX", (graphs / "saved_model.pb").stat().st_size - 1)
    with pytest.raises(BadRecord, match="more than"):
        load_graphs(graphs)


@pytest.mark.parametrize("name", EXPORTED)
def test_every_model_that_is_exported_is_let_in(exported: Path, name: str) -> None:
    admission.check_saved_model(exported / name)


@pytest.mark.parametrize("name", ["kuairand", "synthetic"])
def test_the_models_of_the_examples_are_let_in(tmp_path: Path, name: str) -> None:
    folder = load_app(ROOT / "examples" / name)
    labels = [label.name for label in folder.app.labels]
    export_graphs(model_of(folder), folder.app.features, labels, tmp_path / "graphs")
    admission.check_saved_model(tmp_path / "graphs")


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_an_operation_that_is_let_in_has_no_state_and_takes_no_text(name: str) -> None:
    known = op_def_registry.get(name)
    assert known is not None, "TensorFlow does not have it any more: take it out of the list"
    arguments = [*known.input_arg, *known.output_arg]
    assert not any(
        one.is_ref or one.type in (tf.string.as_datatype_enum, tf.resource.as_datatype_enum) for one in arguments
    )
    assert not known.is_stateful or name in CALLING.split()


def test_functions_are_found_through_all_ways_to_call_them() -> None:
    nodes = saved_model_pb2.SavedModel().meta_graphs.add().graph_def.node
    nodes.add(op="a")
    nodes.add(op="PartitionedCall").attr["f"].func.name = "b"
    nodes.add(op="Case").attr["branches"].list.func.add(name="c")
    assert functions_of(nodes) >= {"a", "b", "c"}
    assert "a" not in ALLOWED
