"""Layout: the paths of versions and graphs in a store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from streamlearn.errors import UsageError

if TYPE_CHECKING:
    from streamlearn.versions.store.interface import Store

__all__ = [
    "MANIFEST_NAME", "RUN_MAX", "SHAPES", "VERSION_MAX", "Shape", "VersionFolder", "graph_folder", "model_folder",
    "shape_folder", "version_folder", "version_folders",
]  # fmt: skip

MANIFEST_NAME = "manifest.json"
# The digits of a folder's name set these bounds; a version every millisecond for thirty years stays below.
VERSION_MAX, RUN_MAX = 10**12 - 1, 10**8 - 1

Shape = Literal["deltas", "bases"]
SHAPES: tuple[Shape, ...] = ("deltas", "bases")

_MODEL = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_FOLDER = re.compile(r"([0-9]{12})-([0-9]{8})")
_GRAPH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, order=True)
class VersionFolder:
    """The folder of a version, parsed from its name.

    Folders sort by run, then version: the order in which histories prevail.
    """

    run: int
    version: int
    shape: Shape
    model: str

    @property
    def path(self) -> str:
        """The path of the folder in the store."""
        return version_folder(self.model, self.shape, self.version, self.run)

    @property
    def manifest(self) -> str:
        """The path of its manifest."""
        return f"{self.path}/{MANIFEST_NAME}"


LogName: TypeAlias = Literal["deletions", "origins", "pointer", "refusals", "requests", "runs", "switches"]


def model_folder(model: str, name: LogName) -> str:
    """Return the folder of one of a model's logs."""
    return f"{_checked(model)}/{name}"


def shape_folder(model: str, shape: Shape) -> str:
    """Return the folder of all deltas or all bases of a model."""
    return f"{_checked(model)}/{shape}"


def version_folder(model: str, shape: Shape, version: int, run: int) -> str:
    """Return the folder of one version.

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


def version_folders(store: Store, model: str) -> list[VersionFolder]:
    """List the folders of a model's versions, with and without a manifest, in their order."""
    return sorted(
        VersionFolder(int(match[2]), int(match[1]), shape, model)
        for shape in SHAPES
        for entry in store.entries(shape_folder(model, shape))
        if entry.is_folder and (match := _FOLDER.fullmatch(entry.name))
    )


def graph_folder(model: str, graph_id: str) -> str:
    """Return the folder of a graph; raises `UsageError` for an invalid id."""
    if not _GRAPH.fullmatch(graph_id):
        message = f"{graph_id[:80]!r} is not a graph id"
        raise UsageError(message, help="a graph id is what `put_graph` returned: 64 hex digits")
    return f"{_checked(model)}/graphs/{graph_id}"


def _checked(model: str) -> str:
    if not _MODEL.fullmatch(model):
        message = f"{model[:80]!r} is not the name of a model"
        help = "use lower-case letters, digits, `_` and `-`, beginning with a letter, at most 64"
        raise UsageError(message, help=help)
    return model
