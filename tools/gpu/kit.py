"""Kit: a folder with exported graphs, their golden inputs and outputs, and a manifest. It needs NumPy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["DIFFERENCE_MAX", "Arrays", "Graph", "Kit", "difference"]

Arrays: TypeAlias = Sequence[npt.NDArray[Any]]

DIFFERENCE_MAX = 1e-4
"""The largest difference of an output from its golden, as a share of the golden's largest number."""

_MANIFEST, _FORMAT = "manifest.json", 1
# Of an output with more rows, about as many are kept, evenly spread.
_ROWS_KEPT = 256


@dataclass(frozen=True)
class Graph:
    """A graph for one shape. Its golden inputs repeat the rows that are kept until they have its shapes.

    Attributes:
        name: The name of its files.
        kind: "user", "score" or "step".
        model: The model.
        rows: Its users, candidates or samples.
        weights: The file of its first parameters; empty for a step, whose weights and slots are inputs.
        shapes: The shapes of its inputs after the weights.
        donated: Pairs (input, output): the output takes the input's memory, and is the input of the next step.
        operations: The operations of the graph before XLA compiled it.
        launches: Those of them that a GPU would run one by one, at least.
    """

    name: str
    kind: str
    model: str
    rows: int
    weights: str
    shapes: list[list[int]]
    donated: list[list[int]]
    operations: int
    launches: int


class Kit:
    """A kit in a folder.

    Attributes:
        graphs: All graphs.
        about: Facts about the kit, such as the releases that wrote it and the layout that steps are packed in.
    """

    def __init__(self, folder: Path, graphs: Sequence[Graph] = (), about: Mapping[str, Any] | None = None) -> None:
        self.folder, self.graphs, self.about = folder, list(graphs), dict(about or {})

    @classmethod
    def read(cls, folder: Path) -> Kit:
        """Read the manifest of a kit; raises ValueError for one of another format."""
        manifest = json.loads((folder / _MANIFEST).read_text())
        if manifest["format"] != _FORMAT:
            message = f"{folder} has format {manifest['format']}, but this release reads {_FORMAT}: export it again"
            raise ValueError(message)
        return cls(folder, [Graph(**graph) for graph in manifest["graphs"]], manifest["about"])

    def write(self) -> None:
        """Write the manifest, after everything else."""
        manifest = {"format": _FORMAT, "about": self.about, "graphs": [asdict(graph) for graph in self.graphs]}
        (self.folder / _MANIFEST).write_text(json.dumps(manifest, indent=1))

    def of(self, kind: str) -> list[Graph]:
        """Return the graphs of a kind, the smallest first."""
        return sorted((graph for graph in self.graphs if graph.kind == kind), key=lambda graph: graph.rows)

    def add(self, graph: Graph, lowered: tuple[bytes, bytes], inputs: Arrays, outputs: Arrays) -> None:
        """Write a graph as HLO and as StableHLO, with kept rows of its inputs and the whole outputs."""
        for suffix, data in zip(("hlo.pb", "stablehlo"), lowered, strict=True):
            (self.folder / f"{graph.name}.{suffix}").write_bytes(data)
        named = {f"in_{number}": array for number, array in enumerate(inputs)}
        named |= {f"out_{number}": _spread(array) for number, array in enumerate(outputs)}
        np.savez_compressed(self.folder / f"{graph.name}.npz", **named)  # type: ignore[arg-type]
        self.graphs.append(graph)

    def lowered(self, graph: Graph) -> tuple[bytes, str]:
        """Return a graph as HLO and as StableHLO."""
        stable = (self.folder / f"{graph.name}.stablehlo").read_text()
        return (self.folder / f"{graph.name}.hlo.pb").read_bytes(), stable

    def weights(self, graph: Graph) -> list[npt.NDArray[Any]]:
        """Return the first parameters of a graph; the same for all graphs of a model."""
        return _arrays(self.folder / f"{graph.weights}.npz", "in") if graph.weights else []

    def inputs(self, graph: Graph) -> list[npt.NDArray[Any]]:
        """Return the inputs after the weights."""
        kept = _arrays(self.folder / f"{graph.name}.npz", "in")
        return [np.resize(array, shape) for array, shape in zip(kept, graph.shapes, strict=True)]

    def difference(self, graph: Graph, outputs: Arrays) -> float:
        """Return the largest difference of outputs from the golden ones."""
        golden = _arrays(self.folder / f"{graph.name}.npz", "out")
        assert len(golden) == len(outputs)
        return max(difference(want, _spread(np.asarray(got))) for want, got in zip(golden, outputs, strict=True))


def difference(want: npt.NDArray[Any], got: npt.NDArray[Any]) -> float:
    """Return the largest difference, as a share of the largest number wanted; infinity if anything is not finite.

    Examples:
        >>> difference(np.array([1.0, 200.0]), np.array([1.0, 201.0]))
        0.005
    """
    if want.shape != got.shape or not np.isfinite(got).all():
        return float("inf")
    wide = np.asarray(want, np.float64)
    return float(np.abs(got - wide).max(initial=0) / (np.abs(wide).max(initial=0) or 1.0))


def _spread(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return some rows of a matrix or block, and all of a vector."""
    return array[:: max(1, len(array) // _ROWS_KEPT)] if array.ndim > 1 else array


def _arrays(file: Path, prefix: str) -> list[npt.NDArray[Any]]:
    with np.load(file) as loaded:
        count = sum(name.startswith(f"{prefix}_") for name in loaded.files)
        return [loaded[f"{prefix}_{number}"] for number in range(count)]
