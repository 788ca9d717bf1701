"""The description of exported graphs, which serving needs to call them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from streamlearn.errors import BadRecord, UsageError
from streamlearn.struct_decoder import from_json

__all__ = ["DESCRIPTION_FILE", "Description", "GraphNote", "TensorNote", "read_description", "write_description"]

DESCRIPTION_FILE = "graphs.json"
_BYTES_MAX = 16 << 20


class TensorNote(Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output of a graph, of dtype "float32" or "int32"; a size of None varies between calls."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


class GraphNote(Struct, frozen=True, forbid_unknown_fields=True):
    """The inputs of a graph after the weights, and its outputs, in their order."""

    inputs: tuple[TensorNote, ...]
    outputs: tuple[TensorNote, ...]


class Description(Struct, frozen=True, forbid_unknown_fields=True):
    """The description of a pair of exported graphs.

    Attributes:
        features: The fingerprint of the features they were made for.
        labels: The predicted labels, in the order of the scores' columns.
        pack: The layout of inputs, as `PackPlan.to_json` returns it.
        weights: The first arguments of both graphs, named as versions name dense weights.
        user: The graph that runs once a request; None if nothing depends on the user alone.
        score: The graph that runs once a candidate. It takes the outputs of `user`, the index of each candidate's user
            in them, and the candidate's inputs.
        format: The version of this format.
    """

    features: str
    labels: tuple[str, ...]
    pack: dict[str, Any]
    weights: tuple[TensorNote, ...]
    user: GraphNote | None
    score: GraphNote
    format: int = 1

    @property
    def weights_bytes(self) -> int:
        """The size of the weights."""
        return sum(4 * math.prod(size or 0 for size in weight.shape) for weight in self.weights)

    def in_order(self, named: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[np.float32]]:
        """Return a version's dense weights in the order of the graphs' arguments; wrong ones raise a UsageError."""
        wanted = {weight.name: weight.shape for weight in self.weights}
        given = {name: tuple(tensor.shape) for name, tensor in named.items()}
        if given != wanted:
            odd = sorted(name for name in given.keys() | wanted.keys() if given.get(name) != wanted.get(name))
            first = f"{odd[0]!r} of shape {given.get(odd[0], 'none')}, but the graphs take {wanted.get(odd[0], 'none')}"
            message = f"{len(odd)} weights do not match the graphs: {first}"
            raise UsageError(message, help="use the weights with the graph id in the manifest of their version")
        return [np.asarray(named[name], np.float32) for name in wanted]


def write_description(folder: Path, description: Description) -> None:
    """Write a description; equal descriptions have equal bytes."""
    data = msgspec.json.encode(description, order="deterministic")
    (folder / DESCRIPTION_FILE).write_bytes(msgspec.json.format(data, indent=1) + b"\n")


def read_description(folder: Path) -> Description:
    """Read the description of exported graphs; a missing or unknown one raises a BadRecord."""
    file = folder / DESCRIPTION_FILE
    try:
        with file.open("rb") as opened:
            description = from_json(opened.read(_BYTES_MAX), Description)
    except FileNotFoundError:
        message = f"{folder} has no exported graphs: {DESCRIPTION_FILE} is missing"
        raise BadRecord(message, help="give a folder that `export_graphs` wrote") from None
    except msgspec.DecodeError as error:
        message = f"{file} does not describe graphs: {error}"
        raise BadRecord(message, help="export the graphs again, or restore them from the store") from error
    if description.format != 1:
        message = f"{file} has format {description.format}, but this release reads format 1"
        raise BadRecord(message, help="use the release that wrote it, or export the graphs again")
    return description
