"""Export: writes a kit with the graphs of DIN's ladder and of training steps. It needs TensorFlow; `prove` does not.

`python -m tools.gpu.export --out kit.tar` writes one file for another machine: unpack it there, and run prove.py.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

import streamlearn
from benchmarks.trainer_topic import samples_folder
from streamlearn.apps import load_app
from streamlearn.errors import ServiceError, StreamlearnError
from streamlearn.models.tensorflow_load import load_tensorflow
from streamlearn.native import native
from streamlearn.table import declared_tables
from tools.gpu.kit import Arrays, Graph, Kit

__all__ = ["export", "main", "pack_up"]

_ROOT = Path(__file__).parents[2]
_DIN = _ROOT / "benchmarks" / "serving_din"
# Sixteen requests of 32 candidates, beside the application's own buckets.
_MERGED_CANDIDATES = 512
_STEP_ROWS, _OTHER_STEP_ROWS, _ITEMS_PER_REQUEST = (4_096, 16_384, 65_536), 4_096, 8
_QUICK_USERS, _QUICK_CANDIDATES, _QUICK_STEP_ROWS = [1, 16], [38, _MERGED_CANDIDATES], (1_024,)
_HIDDEN, _KEYS = (256, 128), 1_000_000
# Steps repeat so many rows: their golden inputs would fill the archive. No shape is a multiple of it.
_STEP_ROWS_KEPT = 97
# Slots as after many steps: the first step of Adam is as large for a gradient of rounding errors as for any other.
_STEPS, _SQUARE = 1_000, 1e-4
# Operations that launch no kernel, or may not.
_FREE = frozenset((
    "Cast", "Const", "ExpandDims", "Identity", "IdentityN", "NoOp", "Pack", "PartitionedCall", "Placeholder",
    "ReadVariableOp", "Reshape", "Shape", "Squeeze", "StatefulPartitionedCall", "StopGradient", "StridedSlice",
))  # fmt: skip
_ARCHIVED = (
    "streamlearn/__init__.py", "streamlearn/errors.py", "streamlearn/native.py", "streamlearn/serving/__init__.py",
    "streamlearn/serving/lanes/__init__.py", "streamlearn/serving/lanes/pinned_memory.py", "tools/__init__.py",
)  # fmt: skip
_NOT_ARCHIVED = ("__main__", "export")
_PROVE = "import sys\n\nfrom tools.gpu.prove import main\n\nsys.exit(main(sys.argv[1:]))\n"


def main(words: list[str]) -> int:
    """Write a folder or an archive, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu.export", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder; or an archive, if the name ends with .tar")
    parser.add_argument("--quick", action="store_true", help="few shapes")
    options = parser.parse_args(words)
    try:
        with tempfile.TemporaryDirectory(prefix="streamlearn-kit-") as place:
            is_archive = options.out.suffix == ".tar"
            kit = export(Path(place) / "kit" if is_archive else options.out, quick=options.quick)
            if is_archive:
                pack_up(kit, options.out)
    except StreamlearnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{len(kit.graphs)} graphs in {options.out}")
    return 0


def export(folder: Path, *, quick: bool = False) -> Kit:
    """Write a kit into a new folder."""
    load_tensorflow()
    folder.mkdir(parents=True)
    kit = Kit(folder, about={"streamlearn": streamlearn.__version__, "tensorflow": version("tensorflow")})
    _Serving(kit, quick).add_all()
    from streamlearn.models import DcnV2, DeepFm

    for rows in _QUICK_STEP_ROWS if quick else _STEP_ROWS:
        _add_step(kit, "deepfm", DeepFm(hidden=_HIDDEN, dense_scale="none", pairs=False), rows)
    if not quick:
        _add_step(kit, "dcn_v2", DcnV2(hidden=_HIDDEN, dense_scale="none"), _OTHER_STEP_ROWS)
    kit.write()
    return kit


def pack_up(kit: Kit, archive: Path) -> None:
    """Write a kit and all that proves it into an archive; the native module goes without its symbols."""
    module = Path(str(native.__file__))
    stripped = kit.folder.parent / module.name
    if strip := shutil.which("strip"):
        subprocess.run([strip, "-o", str(stripped), str(module)], check=True)
    else:
        shutil.copy(module, stripped)
    begin = kit.folder.parent / "prove.py"
    begin.write_text(_PROVE)
    with tarfile.open(archive, "w") as tar:
        tar.add(begin, "prove.py")
        tar.add(kit.folder, "kit")
        tar.add(stripped, f"streamlearn/{module.name}")
        proof = (file for file in sorted(Path(__file__).parent.glob("*.py")) if file.stem not in _NOT_ARCHIVED)
        for file in (*map(_ROOT.joinpath, _ARCHIVED), *proof):
            tar.add(file, str(file.relative_to(_ROOT)))


class _Serving:
    """DIN's graphs, as a node on a GPU compiles them for its ladder."""

    def __init__(self, kit: Kit, quick: bool) -> None:
        from streamlearn.models import export_graphs, load_graphs, model_of
        from streamlearn.models.tf_calls import Place
        from streamlearn.serving.graphs.definitions import Definitions
        from streamlearn.serving.graphs.dense import Dense
        from streamlearn.serving.graphs.ladder import Ladder

        opened = load_app(_DIN, ())
        app, settings = opened.app, opened.settings.serving
        users, candidates = (settings.users_buckets, [*settings.candidates_buckets, _MERGED_CANDIDATES])
        if quick:
            users, candidates = _QUICK_USERS, _QUICK_CANDIDATES
        settings = msgspec.structs.replace(settings, users_buckets=users, candidates_buckets=candidates)
        with tempfile.TemporaryDirectory(prefix="streamlearn-graphs-") as place:
            labels = [label.name for label in app.labels]
            export_graphs(model_of(opened), app.features, labels, Path(place) / "din", outputs=app.outputs)
            graphs = load_graphs(Path(place) / "din")
        self._kit, self._place = kit, Place("/CPU:0")
        self._ladder = Ladder.of(settings, graphs.described)
        self._long, self._short = (
            Definitions(graphs, self._ladder.users_max, has_long_index=is_long) for is_long in (True, False)
        )
        rng = np.random.default_rng(1)
        named = {
            note.name: rng.normal(0, 0.1, [size or 0 for size in note.shape]).astype(np.float32)
            for note in graphs.described.weights
        }
        self._weights = list(named.values())
        self._dense = Dense(graphs.described, named, [self._place]).on(self._place)

    def add_all(self) -> None:
        """Add the graph of each bucket, and of the largest one also with an index of int32."""
        weights = {f"in_{number}": array for number, array in enumerate(self._weights)}
        np.savez_compressed(self._kit.folder / "din.npz", **weights)  # type: ignore[arg-type]
        for bucket in self._ladder.buckets():
            definition = self._long.user if bucket.graph == "user" else self._long.score
            self._add(definition, bucket.rows, bucket.length, "")
        self._add(self._short.score, self._ladder.candidates[-1], self._ladder.lengths[-1], "_int32")

    def _add(self, definition: Any, rows: int, length: int, suffix: str) -> None:
        from streamlearn.models.tf_calls import operations_of
        from streamlearn.serving.graphs.tensors import tensor_of

        rng, users = np.random.default_rng(rows), self._ladder.users_max
        inputs = []
        for note in definition.inputs:
            of_users = note.name.startswith("user_") and note.name != "user_index" and definition.graph == "score"
            sizes = (users if of_users else rows, length)
            shape = [sizes[at] if size is None else size for at, size in enumerate(note.shape)]
            inputs.append(_numbers(rng, note.name, shape, users).astype(note.dtype))
        arguments = [*self._dense, *map(tensor_of, inputs)]
        outputs = self._place.run(definition.plain, arguments, definition.outputs)
        hlo, stable = (
            self._place.lowered(definition.plain, arguments, stage=stage) for stage in ("hlo_serialized", "stablehlo")
        )
        operations = operations_of(definition.plain)
        graph = _graph(f"{definition.graph}_{rows}{suffix}", (definition.graph + suffix, "din"), rows, inputs)
        graph = replace(graph, weights="din", operations=len(operations), launches=_launches(operations))
        _check(graph, stable, [*self._weights, *inputs])
        self._kit.add(graph, (hlo, stable), inputs, [output.numpy() for output in outputs])


def _add_step(kit: Kit, name: str, model: Any, rows: int) -> None:
    """Add a training step, as a trainer traces it; its golden outputs are those without XLA."""
    from streamlearn.table.users_ladder import UsersLadder
    from streamlearn.trainer.learner import Learner, Packed

    folder = samples_folder(kit.folder, _KEYS)
    features, settings = folder.app.features, folder.settings
    learner = Learner(folder.app, model, msgspec.structs.replace(settings.trainer, xla="off", step_rows=rows))
    users = UsersLadder(rows).holds(rows // _ITEMS_PER_REQUEST)
    rng, user, item = np.random.default_rng(rows), features.pack.user, features.pack.item

    def repeated(name: str, *shape: int) -> Any:
        return np.resize(_numbers(rng, name, [_STEP_ROWS_KEPT, *shape[1:]], users).astype(np.float32), shape)

    packed = Packed(
        user_flat=repeated("user_flat", users, user.flat_width),
        user_sequence=repeated("user_sequence", users, user.sequence_length, user.sequence_width),
        item_flat=repeated("item_flat", rows, item.flat_width),
        item_sequence=repeated("item_sequence", rows, item.sequence_length, item.sequence_width),
        user_index=_numbers(rng, "user_index", [rows], users).astype(np.int32),
        targets=repeated("targets", rows, len(folder.app.labels), 4),
        rows=rows,
    )
    slots = {f"slot{at}": np.full(len(learner.weights()), at * _SQUARE, np.float32) for at in range(2)}
    learner.load(learner.dense(), {**slots, "steps": np.array([_STEPS])})
    inputs = [array for array in learner.arrays(packed) if array.size]
    inputs += [learner.weights(), *slots.values()]
    (hlo, operations), (stable, _) = (learner.lowered(packed, stage) for stage in ("hlo_serialized", "stablehlo"))
    learned, state = learner.learn(packed), learner.optimizer_state()
    outputs = [learned.logits, np.float32(learned.loss), np.bool_(learned.is_finite), *learned.gradients]
    outputs += [learner.weights(), *(state[name] for name in slots)]
    graph = _graph(f"step_{name}_{rows}", ("step", name), rows, inputs)
    donated = [[len(inputs) - at, len(outputs) - at] for at in (3, 2, 1)]
    graph = replace(graph, donated=donated, operations=len(operations), launches=_launches(operations))
    _check(graph, stable, inputs)
    kept = [array[:_STEP_ROWS_KEPT] if array.ndim > 1 else array for array in inputs]
    kit.add(graph, (hlo, stable), kept, [np.asarray(output) for output in outputs])
    tables = msgspec.to_builtins(declared_tables(features.tables, settings.tables))
    kit.about |= {"pack": features.pack.to_json(), "tables": tables}


def _numbers(rng: Any, name: str, shape: Sequence[int], users: int) -> npt.NDArray[Any]:
    """Return random inputs of a name: masks and targets are 0 or 1, and candidates are in the order of their users."""
    if name == "user_index":
        return np.sort(rng.integers(0, users, shape))
    array = rng.normal(0, 0.3, shape)
    if name == "targets":  # (value, weight to learn, weight to correct, logarithm of the rate)
        array[...] = (0, 1, 0, 0)
        array[..., 0] = rng.random(shape[:-1]) < 0.3
    elif name.endswith("_sequence") and array.size:
        array[..., -1] = np.arange(shape[1]) < rng.integers(0, shape[1] + 1, (shape[0], 1))
    return array  # type: ignore[no-any-return]


def _graph(name: str, kind: tuple[str, str], rows: int, inputs: Arrays) -> Graph:
    shapes = [list(array.shape) for array in inputs]
    return Graph(name, *kind, rows, weights="", shapes=shapes, donated=[], operations=0, launches=0)


def _launches(operations: Sequence[str]) -> int:
    return sum(operation not in _FREE for operation in operations)


def _check(graph: Graph, stable: bytes, arguments: Arrays) -> None:
    """Check that the graph takes exactly these arguments; XLA would leave out an input that is a constant."""
    signature = re.search(r"func\.func @main\((.*?)\) ->", stable.decode(), re.S)
    takes = re.findall(r"%arg\d+: tensor<([^>]*)>", signature[1]) if signature else []
    kinds = {"float32": "f32", "int32": "i32", "int64": "i64"}
    given = ["x".join([*map(str, array.shape), kinds[array.dtype.name]]) for array in arguments]
    if takes != given:
        message = f"graph {graph.name} takes {', '.join(takes)}, but its arguments are {', '.join(given)}"
        raise ServiceError(message, help="this release of TensorFlow lowers graphs in another way: change the exporter")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
