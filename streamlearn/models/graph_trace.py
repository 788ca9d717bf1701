"""Tracing: a model's two graphs as TensorFlow functions of flat arguments, the weights first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from streamlearn.errors import SpecError
from streamlearn.features import FeatureSpec, PackSide
from streamlearn.models.description import GraphNote, TensorNote
from streamlearn.models.model_errors import told_of
from streamlearn.models.protocol import Model, PackedSide, Tensor

__all__ = ["Traced", "trace_graphs", "weight_notes"]


@dataclass(frozen=True)
class Traced:
    """A graph of a model.

    Attributes:
        name: "user" or "score".
        function: The function of flat arguments.
        concrete: The same for its shapes.
        note: What it takes after the weights, and what it gives.
    """

    name: str
    function: Any
    concrete: Any
    note: GraphNote


def weight_notes(model: Model, weights: Sequence[Tensor]) -> tuple[TensorNote, ...]:
    """The weights a model was built with, by name.

    Raises:
        SpecError: They have names, but not each its own, or are no float32 numbers.
    """
    names = list(getattr(model, "weight_names", None) or (f"weight_{at}" for at in range(len(weights))))
    who = type(model).__name__
    if len(names) != len(weights) or len(set(names)) != len(names):
        message = f"{who} has {len(weights)} weights but {len(set(names))} different names"
        raise SpecError(message, help="give weight_names one name for each weight that build returns")
    notes = [_note(str(name), tf.convert_to_tensor(weight)) for name, weight in zip(names, weights, strict=True)]
    for note in notes:
        if note.dtype != "float32":
            message = f"weight {note.name!r} of {who} is {note.dtype}"
            raise SpecError(message, help="return float32 weights, whatever type they are multiplied in")
    return tuple(notes)


def trace_graphs(
    model: Model, features: FeatureSpec, labels: Sequence[str], weights: Sequence[TensorNote]
) -> list[Traced]:
    """The graphs of a model that was built: `user`, unless it gives nothing, and `score`.

    Raises:
        SpecError: They cannot be traced, or do not give what graphs give.
    """
    any_length = bool(getattr(model, "any_length", False))
    of_user = _inputs("user", features.pack.user, any_length)
    found = [_user_graph(model, weights, of_user)] if of_user else []
    found = [one for one in found if one.note.outputs]
    given = found[0].note.outputs if found else ()
    found.append(_score_graph(model, weights, given, _inputs("item", features.pack.item, any_length)))
    score = found[-1].note.outputs[0]
    if score.dtype != "float32" or score.shape != (None, len(labels)):
        message = f"score of {type(model).__name__} gives {_said(score)} for {len(labels)} labels"
        raise SpecError(message, help=f"return float32 logits of shape (candidates, {len(labels)})")
    return found


def _user_graph(model: Model, weights: Sequence[TensorNote], inputs: Sequence[TensorNote]) -> Traced:
    def user(*given: Tensor) -> dict[str, Tensor]:
        tensors = given[len(weights) :]
        found = model.user(list(given[: len(weights)]), _side("user", inputs, tensors))
        return {name: one for name, one in zip(PackedSide._fields, found, strict=True) if one is not None}

    traced = _traced(model, user, (*weights, *inputs), len(weights))
    for one in traced.note.outputs:
        rank = 2 if one.name == "flat" else 3
        fixed = one.shape[1:] if one.name == "flat" else one.shape[2:]
        if one.dtype != "float32" or len(one.shape) != rank or one.shape[0] is not None or None in fixed:
            message = f"user of {type(model).__name__} gives as `{one.name}` {_said(one)}"
            hint = (
                "return `flat` as float32 of shape (users, fixed width), `sequence` of shape (users, length, "
                "fixed width)"
            )
            raise SpecError(message, help=hint)
    return traced


def _score_graph(
    model: Model, weights: Sequence[TensorNote], given_by_user: Sequence[TensorNote], items: Sequence[TensorNote]
) -> Traced:
    of_user = [TensorNote(f"user_{one.name}", one.dtype, one.shape) for one in given_by_user]
    index = TensorNote("user_index", "int32", (None,))
    first = len(weights)

    def score(*given: Tensor) -> dict[str, Tensor]:
        at = first + len(of_user)
        user, item = _side("user", of_user, given[first:at]), _side("item", items, given[at + 1 :])
        return {"scores": model.score(list(given[:first]), user, given[at], item)}

    return _traced(model, score, (*weights, *of_user, index, *items), first)


def _traced(model: Model, graph: Callable[..., Any], takes: Sequence[TensorNote], weights: int) -> Traced:
    arguments = [f"weight_{at}" for at in range(weights)] + [one.name for one in takes[weights:]]
    specs = [tf.TensorSpec(one.shape, one.dtype, name=name) for one, name in zip(takes, arguments, strict=True)]
    function = tf.function(graph, input_signature=specs, autograph=False)
    with told_of(model, graph.__name__):
        concrete = function.get_concrete_function()
    outputs = tuple(_note(name, one) for name, one in concrete.structured_outputs.items())
    return Traced(graph.__name__, function, concrete, GraphNote(tuple(takes[weights:]), outputs))


def _inputs(side: str, pack: PackSide, any_length: bool) -> list[TensorNote]:
    found = []
    if pack.flat_width:
        found.append(TensorNote(f"{side}_flat", "float32", (None, pack.flat_width)))
    if pack.sequence_length:
        length = None if any_length else pack.sequence_length
        found.append(TensorNote(f"{side}_sequence", "float32", (None, length, pack.sequence_width)))
    return found


def _side(side: str, notes: Sequence[TensorNote], tensors: Sequence[Tensor]) -> PackedSide:
    named = {note.name: tensor for note, tensor in zip(notes, tensors, strict=True)}
    return PackedSide(named.get(f"{side}_flat"), named.get(f"{side}_sequence"))


def _note(name: str, tensor: Tensor) -> TensorNote:
    shape = tensor.shape
    return TensorNote(name, tensor.dtype.name, tuple(shape.as_list()) if shape.rank is not None else ())


def _said(note: TensorNote) -> str:
    return f"{note.dtype} of shape ({', '.join('any' if size is None else str(size) for size in note.shape)})"
