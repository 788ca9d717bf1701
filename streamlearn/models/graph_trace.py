"""Tracing: turns a model's two graphs into TensorFlow functions of flat arguments, the weights first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from streamlearn.errors import SpecError
from streamlearn.features import FeatureSpec, PackSide
from streamlearn.features.labels import Output
from streamlearn.models.description import GraphNote, TensorNote
from streamlearn.models.label_outputs import LabelOutputs
from streamlearn.models.model_errors import wrap_errors
from streamlearn.models.protocol import Model, PackedSide, Tensor

__all__ = ["Traced", "trace_graphs", "weight_notes"]


@dataclass(frozen=True)
class Traced:
    """A traced graph of a model."""

    name: str  # "user" or "score"
    function: Any  # the function of flat arguments
    concrete: Any  # the function for concrete shapes
    note: GraphNote  # its inputs after the weights, and its outputs


def weight_notes(model: object, weights: Sequence[Tensor]) -> tuple[TensorNote, ...]:
    """Return the names and shapes of a model's weights; names must be unique, and weights float32."""
    names = list(getattr(model, "weight_names", None) or (f"weight_{at}" for at in range(len(weights))))
    model_name = type(model).__name__
    if len(names) != len(weights) or len(set(names)) != len(names):
        message = f"{model_name} has {len(weights)} weights but {len(set(names))} different names"
        raise SpecError(message, help="give weight_names one name for each weight that build returns")
    notes = [_note(str(name), tf.convert_to_tensor(weight)) for name, weight in zip(names, weights, strict=True)]
    for note in notes:
        if note.dtype != "float32":
            message = f"weight {note.name!r} of {model_name} is {note.dtype}"
            raise SpecError(message, help="return float32 weights, whatever type they are multiplied in")
    return tuple(notes)


def trace_graphs(
    model: Model, features: FeatureSpec, outputs: Sequence[Output], weights: Sequence[TensorNote]
) -> list[Traced]:
    """Trace the graphs of a built model: `user`, unless it returns nothing, and `score`; check their outputs.

    `outputs` says what the model says of each label. The weights of its curves follow those of the model.
    """
    any_length = bool(getattr(model, "any_length", False))
    user_inputs = _inputs("user", features.pack.user, any_length)
    head = LabelOutputs(model, features, outputs)
    weights = (*weights, *head.curve_notes)
    graphs = [_user_graph(head, weights, user_inputs)] if user_inputs else []
    graphs = [graph for graph in graphs if graph.note.outputs]
    user_outputs = graphs[0].note.outputs if graphs else ()
    item_inputs = _inputs("item", features.pack.item, any_length)
    return [*graphs, _score_graph(head, weights, user_outputs, item_inputs)]


def _user_graph(head: LabelOutputs, weights: Sequence[TensorNote], inputs: Sequence[TensorNote]) -> Traced:
    def user(*given: Tensor) -> dict[str, Tensor]:
        tensors = given[len(weights) :]
        outputs = head.user(list(given[: len(weights) - len(head.curve_notes)]), _side("user", inputs, tensors))
        return {name: block for name, block in zip(PackedSide._fields, outputs, strict=True) if block is not None}

    traced = _traced(head.model, user, (*weights, *inputs), len(weights))
    for note in traced.note.outputs:
        rank = 2 if note.name == "flat" else 3
        fixed = note.shape[1:] if note.name == "flat" else note.shape[2:]
        if note.dtype != "float32" or len(note.shape) != rank or note.shape[0] is not None or None in fixed:
            message = f"user of {type(head.model).__name__} returns as `{note.name}` {_text_of(note)}"
            hint = "return `flat` as float32 of shape (users, fixed width)"
            hint += ", `sequence` of shape (users, length, fixed width)"
            raise SpecError(message, help=hint)
    return traced


def _score_graph(
    head: LabelOutputs, weights: Sequence[TensorNote], user_outputs: Sequence[TensorNote], items: Sequence[TensorNote]
) -> Traced:
    of_user = [TensorNote(f"user_{note.name}", note.dtype, note.shape) for note in user_outputs]
    index = TensorNote("user_index", "int32", (None,))
    first, learned = len(weights), len(weights) - len(head.curve_notes)

    def score(*given: Tensor) -> dict[str, Tensor]:
        at = first + len(of_user)
        user, item = _side("user", of_user, given[first:at]), _side("item", items, given[at + 1 :])
        logits, numbers = head.score(list(given[:learned]), user, given[at], item)
        note = _note("scores", tf.convert_to_tensor(logits))
        if note.dtype != "float32" or note.shape != (None, head.labels):
            message = f"score of {type(head.model).__name__} returns {_text_of(note)} for {head.labels} labels"
            raise SpecError(message, help=f"return float32 logits of shape (candidates, {head.labels})")
        return {"scores": head.predictions(logits, numbers, given[learned:first])}

    return _traced(head.model, score, (*weights, *of_user, index, *items), first)


def _traced(model: Model, graph: Callable[..., Any], takes: Sequence[TensorNote], weights: int) -> Traced:
    arguments = [f"weight_{at}" for at in range(weights)] + [note.name for note in takes[weights:]]
    specs = [tf.TensorSpec(note.shape, note.dtype, name=name) for note, name in zip(takes, arguments, strict=True)]
    function = tf.function(graph, input_signature=specs, autograph=False)
    with wrap_errors(model, graph.__name__):
        concrete = function.get_concrete_function()
    outputs = tuple(_note(name, tensor) for name, tensor in concrete.structured_outputs.items())
    return Traced(graph.__name__, function, concrete, GraphNote(tuple(takes[weights:]), outputs))


def _inputs(side: str, pack: PackSide, any_length: bool) -> list[TensorNote]:
    notes = []
    if pack.flat_width:
        notes.append(TensorNote(f"{side}_flat", "float32", (None, pack.flat_width)))
    if pack.sequence_length:
        length = None if any_length else pack.sequence_length
        notes.append(TensorNote(f"{side}_sequence", "float32", (None, length, pack.sequence_width)))
    return notes


def _side(side: str, notes: Sequence[TensorNote], tensors: Sequence[Tensor]) -> PackedSide:
    named = {note.name: tensor for note, tensor in zip(notes, tensors, strict=True)}
    return PackedSide(named.get(f"{side}_flat"), named.get(f"{side}_sequence"))


def _note(name: str, tensor: Tensor) -> TensorNote:
    shape = tensor.shape
    return TensorNote(name, tensor.dtype.name, tuple(shape.as_list()) if shape.rank is not None else ())


def _text_of(note: TensorNote) -> str:
    return f"{note.dtype} of shape ({', '.join('any' if size is None else str(size) for size in note.shape)})"
