"""The canonical form of a graph: the same bytes in every process.

TensorFlow names functions and nodes by counters of the process, and stores settings of the process with them. Here a
function is named by the hash of its definition and a node by its position; everything that only states where a graph
comes from is removed.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tensorflow.core.protobuf import saved_model_pb2

__all__ = ["FUNCTION_ATTRIBUTES", "Proto", "canonical_functions", "digest_of", "make_canonical"]

# A protocol buffer of TensorFlow.
Proto: TypeAlias = Any

# Attributes that functions keep; graphs with others are not loaded.
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
    """Bring a SavedModel that consists of functions into its canonical form, in place.

    `named` maps the process's names of functions to the readable prefixes of their canonical names.
    """
    file = folder / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for meta in saved.meta_graphs:
        library = _Library(meta.graph_def.library.function, named)
        functions = {name: library.named(name) for name in library.functions}
        _clear_nodes(meta.graph_def.node, library)
        _set_functions(meta.graph_def.library, library)
        meta.meta_info_def.ClearField("function_aliases")
        _rename_in_objects(meta.object_graph_def, functions)
    file.write_bytes(saved.SerializeToString(deterministic=True))
    # It contains a random number, and loading does not need it.
    (folder / "fingerprint.pb").unlink(missing_ok=True)
    shutil.rmtree(folder / "assets", ignore_errors=True)


def digest_of(graph: Proto) -> str:
    """Return a hash of a GraphDef's canonical form."""
    canonical = _copy(graph)
    library = _Library(canonical.library.function, {})
    _clear_nodes(canonical.node, library)
    _rename_nodes(canonical.node, {}, library)
    _set_functions(canonical.library, library)
    return _hash(canonical)


def canonical_functions(functions: Iterable[Proto], named: Mapping[str, str]) -> tuple[list[str], list[Proto]]:
    """Return the canonical names of the functions in `named`, and their definitions with those of all they call.

    `functions` are FunctionDefs, with all that they call; `named` maps the wanted ones to the readable prefixes of
    their names, and these keep the names of their arguments.
    """
    library = _Library(functions, named)
    return [library.named(name) for name in named], list(library.canonical.values())


class _Library:
    """The functions of a graph, made canonical one by one when first used."""

    def __init__(self, functions: Iterable[Proto], readable: Mapping[str, str]) -> None:
        self.functions = {function.signature.name: function for function in functions}
        self.canonical: dict[str, Proto] = {}
        self._readable, self._names = readable, dict[str, str]()

    def named(self, name: str) -> str:
        """Return the canonical name of a function; other names are returned unchanged."""
        if name not in self.functions:
            return name
        if name not in self._names:
            function = _canonical(self.functions[name], self, keep_arguments=name in self._readable)
            new = f"{self._readable.get(name, 'function')}_{_hash(function)[:32]}"
            function.signature.name = new
            self.canonical[new] = function
            self._names[name] = new
        return self._names[name]

    def outputs(self, name: str) -> dict[str, str]:
        """Map a function's output names to their canonical names, for nodes that call it by name."""
        if name not in self.functions:
            return {}
        return {output.name: f"out_{at}" for at, output in enumerate(self.functions[name].signature.output_arg)}


def _canonical(function: Proto, library: _Library, *, keep_arguments: bool) -> Proto:
    result = _copy(function)
    signature = result.signature
    names = {
        argument.name: argument.name if keep_arguments else f"in_{at}"
        for at, argument in enumerate(signature.input_arg)
    }
    _clear_nodes(result.node_def, library)
    renamed = _rename_nodes(result.node_def, names, library)
    returned = [(f"out_{at}", renamed(result.ret[output.name])) for at, output in enumerate(signature.output_arg)]
    controls = [
        (f"control_{at}", renamed(result.control_ret[control])) for at, control in enumerate(signature.control_output)
    ]
    for at, argument in enumerate(signature.input_arg):
        argument.name = names[argument.name]
        argument.ClearField("handle_data")
        _keep_only(result.arg_attr[at].attr, {"_output_shapes", *(("_user_specified_name",) if keep_arguments else ())})
    for at, output in enumerate(signature.output_arg):
        output.name = f"out_{at}"
    for field in ("ret", "control_ret", "resource_arg_unique_id"):
        result.ClearField(field)
    result.ret.update(returned)
    result.control_ret.update(controls)
    signature.ClearField("control_output")
    signature.control_output.extend(name for name, _ in controls)
    signature.ClearField("description")
    signature.name = ""
    _keep_only(result.attr, FUNCTION_ATTRIBUTES)
    return result


def _clear_nodes(nodes: Iterable[Proto], library: _Library) -> None:
    """Remove what states where nodes come from, and call functions by their canonical names."""
    for node in nodes:
        node.ClearField("experimental_debug_info")
        public = {name for name in node.attr if not name.startswith("_")}
        _keep_only(node.attr, (public - _OF_THE_PROCESS) | _NODE_ATTRIBUTES)
        for attribute in node.attr.values():
            if attribute.HasField("func"):
                attribute.func.name = library.named(attribute.func.name)
            for called in attribute.list.func:
                called.name = library.named(called.name)


def _rename_nodes(nodes: Iterable[Proto], arguments: Mapping[str, str], library: _Library) -> Any:
    """Name nodes by operation and position; returns the function that renames an input accordingly."""
    new = dict(arguments)
    outputs: dict[str, dict[str, str]] = {}
    for at, node in enumerate(nodes):
        outputs[node.name] = library.outputs(node.op)
        new[node.name] = f"{'call' if outputs[node.name] else node.op}_{at}"

    def renamed(old: str) -> str:
        name, *output = old.removeprefix("^").split(":")
        if output:
            output[0] = outputs.get(name, {}).get(output[0], output[0])
        return ("^" if old.startswith("^") else "") + ":".join([new[name], *output])

    for node in nodes:
        inputs = [renamed(name) for name in node.input]
        node.ClearField("input")
        node.input.extend(inputs)
        node.name = new[node.name]
        node.op = library.named(node.op)
        # Canonical graphs are the same on every device; the caller chooses one.
        node.ClearField("device")
    return renamed


def _set_functions(target: Proto, library: _Library) -> None:
    for name in library.functions:
        library.named(name)
    kept = [library.canonical[name] for name in sorted(library.canonical)]
    # Only the trainer needs gradients, and it computes them from the model itself.
    for field in ("function", "gradient", "registered_gradients"):
        target.ClearField(field)
    target.function.extend(kept)


def _rename_in_objects(objects: Proto, functions: Mapping[str, str]) -> None:
    concrete = {old: objects.concrete_functions[old] for old in list(objects.concrete_functions)}
    copies = {functions.get(old, old): _copy(function) for old, function in concrete.items()}
    objects.ClearField("concrete_functions")
    for name, function in copies.items():
        objects.concrete_functions[name].CopyFrom(function)
    for node in objects.nodes:
        if node.HasField("function"):
            called = [functions.get(old, old) for old in node.function.concrete_functions]
            node.function.ClearField("concrete_functions")
            node.function.concrete_functions.extend(called)
        if node.HasField("bare_concrete_function"):
            bare = node.bare_concrete_function
            bare.concrete_function_name = functions.get(bare.concrete_function_name, bare.concrete_function_name)


def _copy(message: Proto) -> Proto:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _keep_only(attributes: Any, names: Iterable[str]) -> None:
    for name in set(attributes) - set(names):
        del attributes[name]


def _hash(message: Proto) -> str:
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()
