"""The canonical form of a graph: the same bytes whatever its process had made before.

TensorFlow names functions and nodes by counters of the process, and writes settings of the process beside them. Here
functions are named by the hash of their definition and nodes by their place; what only says where a graph comes from is
left out.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tensorflow.core.protobuf import saved_model_pb2

__all__ = ["FUNCTION_ATTRIBUTES", "Proto", "canonical_functions", "digest_of", "make_canonical"]

# Messages of TensorFlow's own protocol buffers.
Proto: TypeAlias = Any

# Attributes that a function keeps; graphs with others are not loaded.
FUNCTION_ATTRIBUTES = {
    "_XlaMustCompile",
    "_construction_context",
    "_has_manual_control_dependencies",
    "_input_shapes",
    "_noinline",
}
_NODE_ATTRIBUTES = {"_lower_using_switch_merge", "_output_shapes"}
_OF_THE_PROCESS = {"config_proto", "executor_type"}


def make_canonical(folder: Path, named: Mapping[str, str]) -> None:
    """Bring a SavedModel into its canonical form, in place.

    Args:
        folder: The SavedModel, of functions alone.
        named: Names of functions that are to keep a readable beginning, by their names in the process.
    """
    file = folder / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for meta in saved.meta_graphs:
        library = _Library(meta.graph_def.library.function, named)
        functions = {name: library.named(name) for name in library.found}
        _clear_nodes(meta.graph_def.node, library)
        _set_functions(meta.graph_def.library, library)
        meta.meta_info_def.ClearField("function_aliases")
        _rename_in_objects(meta.object_graph_def, functions)
    file.write_bytes(saved.SerializeToString(deterministic=True))
    # A random number is in it, and nobody needs it to load the rest.
    (folder / "fingerprint.pb").unlink(missing_ok=True)
    shutil.rmtree(folder / "assets", ignore_errors=True)


def digest_of(graph: Proto) -> str:
    """A hash of a GraphDef's canonical form."""
    found = type(graph)()
    found.CopyFrom(graph)
    library = _Library(found.library.function, {})
    _clear_nodes(found.node, library)
    _rename_nodes(found.node, {}, library)
    _set_functions(found.library, library)
    return _hash(found)


def canonical_functions(functions: Iterable[Proto], named: Mapping[str, str]) -> tuple[list[str], list[Proto]]:
    """Functions in their canonical form, each named by the hash of its definition.

    Args:
        functions: FunctionDefs, with all that they call.
        named: Those that are wanted, each with the readable beginning its name is to have; their arguments keep names.

    Returns:
        The new names of those that are wanted, and their definitions with all that they call.
    """
    library = _Library(functions, named)
    return [library.named(name) for name in named], list(library.canonical.values())


class _Library:
    """The functions of a graph, made canonical one by one as they are asked for."""

    def __init__(self, functions: Iterable[Proto], readable: Mapping[str, str]) -> None:
        self.found = {function.signature.name: function for function in functions}
        self.canonical: dict[str, Proto] = {}
        self._readable, self._names = readable, dict[str, str]()

    def named(self, name: str) -> str:
        """The canonical name of a function; a name that is none of them stays."""
        if name not in self.found:
            return name
        if name not in self._names:
            function = _canonical(self.found[name], self, keep_arguments=name in self._readable)
            new = f"{self._readable.get(name, 'function')}_{_hash(function)[:32]}"
            function.signature.name = new
            self.canonical[new] = function
            self._names[name] = new
        return self._names[name]

    def outputs(self, name: str) -> dict[str, str]:
        """How a function's outputs were named, and how they are: for nodes that call it by its own name."""
        if name not in self.found:
            return {}
        return {one.name: f"out_{at}" for at, one in enumerate(self.found[name].signature.output_arg)}


def _canonical(function: Proto, library: _Library, *, keep_arguments: bool) -> Proto:
    found = type(function)()
    found.CopyFrom(function)
    signature = found.signature
    names = {one.name: one.name if keep_arguments else f"in_{at}" for at, one in enumerate(signature.input_arg)}
    _clear_nodes(found.node_def, library)
    places = _rename_nodes(found.node_def, names, library)
    returned = [(f"out_{at}", places(found.ret[one.name])) for at, one in enumerate(signature.output_arg)]
    controls = [(f"control_{at}", places(found.control_ret[one])) for at, one in enumerate(signature.control_output)]
    for at, one in enumerate(signature.input_arg):
        one.name = names[one.name]
        one.ClearField("handle_data")
        _keep(found.arg_attr[at].attr, {"_output_shapes", *(("_user_specified_name",) if keep_arguments else ())})
    for at, one in enumerate(signature.output_arg):
        one.name = f"out_{at}"
    for field in ("ret", "control_ret", "resource_arg_unique_id"):
        found.ClearField(field)
    found.ret.update(returned)
    found.control_ret.update(controls)
    signature.ClearField("control_output")
    signature.control_output.extend(name for name, _ in controls)
    signature.ClearField("description")
    signature.name = ""
    _keep(found.attr, FUNCTION_ATTRIBUTES)
    return found


def _clear_nodes(nodes: Iterable[Proto], library: _Library) -> None:
    """Take out what says where nodes come from, and call functions by their canonical names."""
    for node in nodes:
        node.ClearField("experimental_debug_info")
        public = {name for name in node.attr if not name.startswith("_")}
        _keep(node.attr, (public - _OF_THE_PROCESS) | _NODE_ATTRIBUTES)
        for attribute in node.attr.values():
            if attribute.HasField("func"):
                attribute.func.name = library.named(attribute.func.name)
            for called in attribute.list.func:
                called.name = library.named(called.name)


def _rename_nodes(nodes: Iterable[Proto], arguments: Mapping[str, str], library: _Library) -> Any:
    """Name nodes by their operation and place.

    Returns:
        What an input that names a node or an argument is called then.
    """
    new = dict(arguments)
    outputs: dict[str, dict[str, str]] = {}
    for at, node in enumerate(nodes):
        outputs[node.name] = library.outputs(node.op)
        new[node.name] = f"{'call' if outputs[node.name] else node.op}_{at}"

    def place(old: str) -> str:
        name, *rest = old.removeprefix("^").split(":")
        if rest:
            rest[0] = outputs.get(name, {}).get(rest[0], rest[0])
        return ("^" if old.startswith("^") else "") + ":".join([new[name], *rest])

    for node in nodes:
        inputs = [place(one) for one in node.input]
        node.ClearField("input")
        node.input.extend(inputs)
        node.name = new[node.name]
        node.op = library.named(node.op)
        # The same on every device: what runs a graph says on which.
        node.ClearField("device")
    return place


def _set_functions(target: Proto, library: _Library) -> None:
    for name in library.found:
        library.named(name)
    kept = [library.canonical[name] for name in sorted(library.canonical)]
    # Gradients are the trainer's, which makes them of the model itself.
    for field in ("function", "gradient", "registered_gradients"):
        target.ClearField(field)
    target.function.extend(kept)


def _rename_in_objects(objects: Proto, functions: Mapping[str, str]) -> None:
    concrete = {old: objects.concrete_functions[old] for old in list(objects.concrete_functions)}
    copies = {functions.get(old, old): _copy(one) for old, one in concrete.items()}
    objects.ClearField("concrete_functions")
    for name, one in copies.items():
        objects.concrete_functions[name].CopyFrom(one)
    for node in objects.nodes:
        if node.HasField("function"):
            called = [functions.get(old, old) for old in node.function.concrete_functions]
            node.function.ClearField("concrete_functions")
            node.function.concrete_functions.extend(called)
        if node.HasField("bare_concrete_function"):
            bare = node.bare_concrete_function
            bare.concrete_function_name = functions.get(bare.concrete_function_name, bare.concrete_function_name)


def _copy(message: Proto) -> Proto:
    found = type(message)()
    found.CopyFrom(message)
    return found


def _keep(attributes: Any, names: Iterable[str]) -> None:
    for name in set(attributes) - set(names):
        del attributes[name]


def _hash(message: Proto) -> str:
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()
