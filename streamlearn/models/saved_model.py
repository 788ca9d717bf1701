"""Exporting: writes a model's graphs as a SavedModel that plain TensorFlow loads, with the weights as arguments."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from streamlearn.errors import SpecError, UsageError
from streamlearn.features import FeatureSpec
from streamlearn.features.labels import Output
from streamlearn.models.canonical import digest_of, make_canonical
from streamlearn.models.checks import check_compiled, check_graph, check_weights_used
from streamlearn.models.description import Description, TensorNote, read_description, write_description
from streamlearn.models.graph_trace import Traced, trace_graphs, weight_notes
from streamlearn.models.label_outputs import LabelOutputs
from streamlearn.models.model_errors import wrap_errors
from streamlearn.models.protocol import Model

__all__ = ["export_graphs"]


def export_graphs(
    model: Model,
    features: FeatureSpec,
    labels: Sequence[str],
    folder: Path,
    seed: int = 0,
    *,
    outputs: Sequence[Output] | None = None,
) -> Description:
    """Write a model's graphs into a new folder, which appears complete, and return their description.

    `outputs` says what the model says of each label (`App.outputs`); None if it says the logit of each.

    The folder holds a SavedModel with the functions `user` and `score`, which take the weights one by one and then
    their inputs, and the description as `graphs.json`. The same model writes the same bytes in every process, whatever
    the seed; so `put_graph` stores it once.

    The model is built twice, and stays built for these features and labels.

    Raises:
        SpecError: A graph closes over a learned value, has state, depends on the seed, is refused by XLA, or has wrong
            outputs; or a weight is not used.
        UsageError: The folder exists and is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        message = f"{folder} exists already"
        raise UsageError(message, help="give a path that does not exist")
    if outputs is None and features.calibrations:
        message = (
            f"labels are calibrated ({features.calibrations[0].name}), and nothing says what the model says of each"
        )
        raise UsageError(message, help="give outputs=app.outputs")
    outputs = (Output(),) * len(labels) if outputs is None else outputs
    other = _digests(_built(model, features, labels, seed + 1, outputs)[1])
    weights, graphs = _built(model, features, labels, seed, outputs)
    for graph in graphs:
        if other.get(graph.name) != _digests(graphs)[graph.name]:
            message = f"{graph.name} of {type(model).__name__} changes with the seed of the model"
            hint = "take learned numbers from `weights`, and build the graph without randomness"
            raise SpecError(message, help=hint)
    check_weights_used(model, weights, graphs)
    check_compiled(model, features, weights, graphs)
    by_name = {graph.name: graph for graph in graphs}
    user = by_name["user"].note if "user" in by_name else None
    pack, score = features.pack.to_json(), by_name["score"].note
    _write(folder, graphs, Description(features.fingerprint, tuple(labels), pack, weights, user, score))
    return read_description(folder)


def _built(
    model: Model, features: FeatureSpec, labels: Sequence[str], seed: int, outputs: Sequence[Output]
) -> tuple[tuple[TensorNote, ...], list[Traced]]:
    with wrap_errors(model, "build"):
        weights = weight_notes(model, model.build(features.of_model, labels, seed))
    graphs = trace_graphs(model, features, outputs, weights)
    weights += LabelOutputs(model, features, outputs).curve_notes
    for graph in graphs:
        check_graph(model, graph)
    return weights, graphs


def _digests(graphs: Sequence[Traced]) -> dict[str, str]:
    return {graph.name: digest_of(graph.concrete.graph.as_graph_def()) for graph in graphs}


def _write(folder: Path, graphs: Sequence[Traced], description: Description) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        module = tf.Module()
        for graph in graphs:
            setattr(module, graph.name, graph.function)
        # Without gradients, which only the trainer needs, and debug information, which names files of this machine.
        options = tf.saved_model.SaveOptions(save_debug_info=False, experimental_custom_gradients=False)
        signatures = {graph.name: graph.concrete for graph in graphs}
        tf.saved_model.save(module, str(scratch), signatures=signatures, options=options)
        make_canonical(scratch, {graph.concrete.name: graph.name for graph in graphs})
        write_description(scratch, description)
        scratch.chmod(0o755)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
