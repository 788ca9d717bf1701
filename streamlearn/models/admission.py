"""Admission of exported graphs: checks the content of a SavedModel before TensorFlow loads any of it.

A SavedModel can run code when it is loaded and when it is called: initializers, custom operations, operations that read
and write files. Graphs that `export_graphs` wrote consist of two functions of their arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tensorflow.core.protobuf import saved_model_pb2

from streamlearn.errors import BadRecord
from streamlearn.models.canonical import FUNCTION_ATTRIBUTES
from streamlearn.models.description import DESCRIPTION_FILE
from streamlearn.models.operations import ALLOWED, SAVER, functions_of

__all__ = ["check_saved_model"]

GRAPH_BYTES_MAX = 256 << 20
_GRAPH_FILE = "saved_model.pb"
_FILES = {DESCRIPTION_FILE, _GRAPH_FILE, "variables/variables.index", "variables/variables.data-00000-of-00001"}
_KINDS = {"user_object", "function", "bare_concrete_function"}
_OBJECTS = {"_generic_user_object", "signature_map"}


def check_saved_model(folder: Path) -> None:
    """Refuse a SavedModel that has more than the functions of a model with a BadRecord, without running any of it."""
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_symlink() or not (file.is_dir() or name in _FILES):
            _refuse(folder, f"the file {name}")
    saved = _read(folder / _GRAPH_FILE)
    if len(saved.meta_graphs) != 1 or not saved.meta_graphs[0].HasField("object_graph_def"):
        _refuse(folder, f"{len(saved.meta_graphs)} graphs; expected exactly one, with objects")
    meta = saved.meta_graphs[0]
    if meta.asset_file_def:
        _refuse(folder, f"the asset {meta.asset_file_def[0].filename!r}")
    _check_objects(folder, meta.object_graph_def)
    functions = meta.graph_def.library.function
    called = functions_of(node for function in functions for node in function.node_def)
    called.update(meta.object_graph_def.concrete_functions)
    for node in meta.object_graph_def.nodes:
        called.update((*node.function.concrete_functions, node.bare_concrete_function.concrete_function_name))
    _check_nodes(folder, "the graph itself", meta.graph_def.node)
    for function in functions:
        name = function.signature.name
        # One such attribute lets TensorFlow call another function in place of the one that is named.
        if odd := sorted(set(function.attr) - FUNCTION_ATTRIBUTES):
            _refuse(folder, f"the attribute {odd[0]} of function {name}")
        _check_nodes(folder, f"function {name}", function.node_def, frozenset() if name in called else SAVER)


def _read(file: Path) -> Any:
    try:
        with file.open("rb") as opened:
            data = opened.read(GRAPH_BYTES_MAX + 1)
        if len(data) > GRAPH_BYTES_MAX:
            _refuse(file.parent, f"a graph of more than {GRAPH_BYTES_MAX} bytes")
        return saved_model_pb2.SavedModel.FromString(data)
    except (OSError, DecodeError) as error:
        message = f"{file.parent} holds no graphs TensorFlow can load: {type(error).__name__}: {error}"
        raise BadRecord(message, help="export the graphs again, or restore them from the store") from error


def _check_objects(folder: Path, objects: Any) -> None:
    for node in objects.nodes:
        kind = node.WhichOneof("kind")
        if kind not in _KINDS:
            _refuse(folder, f"an object that is a {kind}")
        if kind == "user_object" and node.user_object.identifier not in _OBJECTS:
            _refuse(folder, f"an object of type {node.user_object.identifier!r}")
        if node.registered_name or node.registered_saver or node.saveable_objects or node.slot_variables:
            _refuse(folder, f"an object with a saver or a class of its own, {node.registered_name!r}")
        if odd := [child.local_name for child in node.children if child.local_name.startswith("_")]:
            _refuse(folder, f"the function {odd[0]}")


def _check_nodes(folder: Path, where: str, nodes: Iterable[Any], more: frozenset[str] = frozenset()) -> None:
    for node in nodes:
        if node.op not in ALLOWED and node.op not in more:
            _refuse(folder, f"operation {node.op} in {where}")


def _refuse(folder: Path, what: str) -> NoReturn:
    message = f"the graphs in {folder} are refused: they hold {what}"
    raise BadRecord(message, help="a graph may only compute scores: find out who wrote this one to the store")
