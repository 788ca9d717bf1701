"""The description of exported graphs: what serving has to know to call them."""

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
    """A tensor that goes into a graph or comes out of it.

    Attributes:
        name: Its name.
        dtype: "float32" or "int32".
        shape: Its shape; None is whatever it is in a call.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]


class GraphNote(Struct, frozen=True, forbid_unknown_fields=True):
    """A graph.

    Attributes:
        inputs: What it takes after the weights, in this order.
        outputs: What it gives, by name.
    """

    inputs: tuple[TensorNote, ...]
    outputs: tuple[TensorNote, ...]


class Description(Struct, frozen=True, forbid_unknown_fields=True):
    """What serving has to know of exported graphs.

    Attributes:
        features: The fingerprint of the features they were made for.
        labels: What is predicted, in the order of the scores' columns.
        pack: How inputs are laid out, as `PackPlan.to_json` says it.
        weights: What both graphs take first, in this order; named as versions name dense weights.
        user: The graph that runs once a request; None where nothing depends on the user alone.
        score: The graph that runs once a candidate. It takes what `user` gave, the row in it of each candidate's
            user, and the candidate's inputs.
        format: Of this description.
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
        """How large the weights are."""
        return sum(4 * math.prod(size or 0 for size in one.shape) for one in self.weights)

    def in_order(self, named: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[np.float32]]:
        """The dense weights of a version in the order both graphs take them.

        Args:
            named: The weights by name, as versions keep them.

        Raises:
            UsageError: One is missing, too many or of another shape.
        """
        wanted = {one.name: one.shape for one in self.weights}
        found = {name: tuple(tensor.shape) for name, tensor in named.items()}
        if found != wanted:
            odd = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
            said = f"{odd[0]!r} of shape {found.get(odd[0], 'none')}, but the graphs take {wanted.get(odd[0], 'none')}"
            message = f"{len(odd)} weights do not match the graphs: {said}"
            raise UsageError(message, help="use the weights with the graph id in the manifest of their version")
        return [np.asarray(named[name], np.float32) for name in wanted]


def write_description(folder: Path, description: Description) -> None:
    """Write a description; equal ones are equal bytes."""
    data = msgspec.json.encode(description, order="deterministic")
    (folder / DESCRIPTION_FILE).write_bytes(msgspec.json.format(data, indent=1) + b"\n")


def read_description(folder: Path) -> Description:
    """Read the description of exported graphs.

    Raises:
        BadRecord: There is none, or it is none that this release can read.
    """
    file = folder / DESCRIPTION_FILE
    try:
        with file.open("rb") as opened:
            found = from_json(opened.read(_BYTES_MAX), Description)
    except FileNotFoundError:
        message = f"{folder} has no exported graphs: {DESCRIPTION_FILE} is missing"
        raise BadRecord(message, help="give a folder that `export_graphs` wrote") from None
    except msgspec.DecodeError as error:
        message = f"{file} does not describe graphs: {error}"
        raise BadRecord(message, help="export the graphs again, or restore them from the store") from error
    if found.format != 1:
        message = f"{file} has format {found.format}, but this release reads format 1"
        raise BadRecord(message, help="use the release that wrote it, or export the graphs again")
    return found
