"""Layout: where versions and graphs lie in a store. It reads and writes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from streamlearn.errors import UsageError

__all__ = [
    "MANIFEST_NAME",
    "RUN_MAX",
    "SHAPES",
    "VERSION_MAX",
    "Shape",
    "VersionFolder",
    "graph_folder",
    "model_folder",
    "parse_folder",
    "shape_folder",
    "version_folder",
]

MANIFEST_NAME = "manifest.json"
# What the digits of a folder's name can say; a version every millisecond for thirty years is less.
VERSION_MAX, RUN_MAX = 10**12 - 1, 10**8 - 1

Shape = Literal["deltas", "bases"]
SHAPES: tuple[Shape, ...] = ("deltas", "bases")

_MODEL = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_FOLDER = re.compile(r"([0-9]{12})-([0-9]{8})")
_GRAPH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, order=True)
class VersionFolder:
    """The folder of a version, as its name says.

    They sort by run and then version: the order in which histories prevail.

    Attributes:
        run: The run that wrote it.
        version: The version.
        shape: Whether it holds what changed, or everything.
        model: Of which model.
    """

    run: int
    version: int
    shape: Shape
    model: str

    @property
    def path(self) -> str:
        """Where it is in the store."""
        return version_folder(self.model, self.shape, self.version, self.run)

    @property
    def manifest(self) -> str:
        """Where its manifest is."""
        return f"{self.path}/{MANIFEST_NAME}"


def model_folder(model: str, name: Literal["pointer", "refusals", "requests", "runs"]) -> str:
    """The folder of one of a model's logs."""
    return f"{_checked(model)}/{name}"


def shape_folder(model: str, shape: Shape) -> str:
    """The folder of all deltas or all bases of a model."""
    return f"{_checked(model)}/{shape}"


def version_folder(model: str, shape: Shape, version: int, run: int) -> str:
    """The folder of one version.

    Raises:
        UsageError: The model's name or a number is out of bounds.

    Examples:
        >>> version_folder("ctr", "deltas", 1842, 7)
        'ctr/deltas/000000001842-00000007'
    """
    if not (0 < version <= VERSION_MAX and 0 <= run <= RUN_MAX):
        message = f"version {version} of run {run}"
        raise UsageError(message, help=f"versions are 1 to {VERSION_MAX}, runs 0 to {RUN_MAX}")
    return f"{_checked(model)}/{shape}/{version:012d}-{run:08d}"


def parse_folder(model: str, shape: Shape, name: str) -> VersionFolder | None:
    """The version whose folder has this name; None when it is no version's."""
    found = _FOLDER.fullmatch(name)
    return None if found is None else VersionFolder(int(found[2]), int(found[1]), shape, model)


def graph_folder(model: str, graph_id: str) -> str:
    """The folder of a graph.

    Raises:
        UsageError: The id is none.
    """
    if not _GRAPH.fullmatch(graph_id):
        message = f"{graph_id[:80]!r} is not a graph id"
        raise UsageError(message, help="a graph id is what `put_graph` returned: 64 hex digits")
    return f"{_checked(model)}/graphs/{graph_id}"


def _checked(model: str) -> str:
    if not _MODEL.fullmatch(model):
        message = f"{model[:80]!r} is not the name of a model"
        raise UsageError(
            message, help="use lower-case letters, digits, `_` and `-`, beginning with a letter, at most 64"
        )
    return model
