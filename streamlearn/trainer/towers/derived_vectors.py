"""DerivedVectors: the vectors of a version's items, made once more from its rows and weights, and those that differ.

A version is read from its files alone, as if nothing had made its vectors before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.errors import UsageError, VersionDefect
from streamlearn.features.retrieval import TOWERS, of_retrieval
from streamlearn.library.items import LibraryView
from streamlearn.library.library import Library
from streamlearn.table import Packing
from streamlearn.trainer.towers.item_vectors import are_searchable, encoded, places_of
from streamlearn.trainer.towers.tower_learner import TowerLearner
from streamlearn.trainer.towers.tower_state import towers_of
from streamlearn.versions import Chain, load, load_tensors
from streamlearn.versions.format.library_files import vectors_in
from streamlearn.versions.format.scratch import record_of, table_of
from streamlearn.versions.store.defect import defective

__all__ = ["DerivedVectors", "derived_vectors"]

_AT_ONCE = 1 << 14
_NAMED_MAX = 20
# In a batch of another size or on another processor floats are rounded otherwise, which may move a number to the next
# step.
_STEPS_MAX, _SCALE_SHARE_MAX = 1.01, 1e-3
_Bools = npt.NDArray[np.bool_]


class DerivedVectors(NamedTuple):
    """What was found: the number of vectors made, how many of them differ by rounding, and those that are wrong."""

    version: int
    made: int
    rounded: int
    defects: tuple[VersionDefect, ...]


def derived_vectors(folder: AppFolder, chain: Chain) -> DerivedVectors:
    """Make the vectors of all items of a version, and compare them with those that it holds.

    Numbers may differ by one step of int8, and factors by a thousandth: `rounded` counts such vectors. Of more wrong
    vectors, the first 20 items are named. Items without vectors, and vectors without items, are for `verify` to name.

    Raises:
        UsageError: The application declares no retrieval, or another than the version has.
        VersionDefect: A file is damaged.
    """
    app, record = folder.app, chain.manifest.retrieval
    if app.towers is None or not record or record.fingerprint != app.retrieval_fingerprint:
        message = f"version {chain.version} of {app.name!r} was not made by the towers that {folder.folder} declares"
        raise UsageError(
            message, help="give the folder that the version was trained with, with retrieval=Retrieval(...)"
        )
    library = Library(app)
    library.restore(chain)
    items, stored = library.view(), vectors_in(chain.store, chain.links)
    if stored is None:
        raise defective(chain.head.folder, "missing_file", "it has no vectors of items")
    wrong, made_count, rounded_count = np.zeros(0, np.int64), 0, 0
    for at, values, scales in _made(folder, chain, items):
        places, is_held = places_of(stored["key"], items.keys[at])
        held = places[is_held]
        pair = (values[is_held], scales[is_held]), (stored["row"][held], stored["scale"][held])
        is_alike = (pair[0][1] == pair[1][1]) & (pair[0][0] == pair[1][0]).all(axis=1)
        is_near = is_alike | _are_near(*pair)
        wrong = np.append(wrong, at[is_held][~is_near])
        made_count, rounded_count = made_count + len(held), rounded_count + int((is_near & ~is_alike).sum())
    return DerivedVectors(chain.version, made_count, rounded_count, (*_named(chain, items, wrong),))


def _made(folder: AppFolder, chain: Chain, items: LibraryView) -> Iterator[tuple[npt.NDArray[np.int64], Any, Any]]:
    """Yield the places of items, and their vectors as int8 numbers and factors."""
    app, settings, record = folder.app, folder.settings, record_of(chain.manifest, TOWERS)
    assert app.towers is not None
    learner = TowerLearner(app.towers, towers_of(folder), settings.trainer, settings.retrieval.rate)
    weights = learner.end_to_end(of_retrieval(load_tensors(chain.store, chain.head)))
    files = (entry for link in chain.links for entry in link.manifest.files)
    rows = sum(entry.rows for entry in files if entry.kind == "rows" and entry.table == TOWERS)
    tables = table_of(record, rows, training=record.optimizer is not None)
    load(chain, tables, training=record.optimizer is not None, rows_only=True)
    packing = Packing(app.towers.pack.item, tables)
    for begin in range(0, len(items), _AT_ONCE):
        at = np.arange(begin, min(begin + _AT_ONCE, len(items)))
        flat = packing.flat(items.items(at).features, len(at), at=chain.version)
        vectors = learner.items(flat, weights)
        # Versions hold zeros for a vector with a number that is not finite; see `VectorsCut`.
        yield at, *encoded(np.where(are_searchable(vectors)[:, None], vectors, np.float32(0.0)))


def _are_near(made: tuple[Any, Any], held: tuple[Any, Any]) -> _Bools:
    (values, scales), (others, other_scales) = made, held
    largest = np.maximum(scales, other_scales)
    numbers = values * scales[:, None] - others * other_scales[:, None]
    are: _Bools = (np.abs(numbers) <= _STEPS_MAX * largest[:, None]).all(axis=1)
    are &= np.abs(scales - other_scales) <= _SCALE_SHARE_MAX * largest
    return are


def _named(chain: Chain, items: LibraryView, wrong: npt.NDArray[np.int64]) -> Iterator[VersionDefect]:
    ids = items.ids_of(wrong[:_NAMED_MAX]).listed()
    for number, (at, item) in enumerate(zip(wrong[:_NAMED_MAX], ids, strict=True), 1):
        what = f"the vector of item {item} in version {chain.version} is not what its rows and weights make"
        left = len(wrong) - number if number == _NAMED_MAX else 0
        more = f"; so are those of {left} other items" if left else ""
        yield defective(_folder_of(chain, items.keys[at]), "corrupted", f"{what}{more}")


def _folder_of(chain: Chain, key: np.uint64) -> str:
    """Return the folder of the version of a chain that wrote the vector of a key."""
    for link in reversed(chain.links):
        if key in load_tensors(chain.store, link, "vectors").get("key", ()):
            return link.folder
    return chain.head.folder
