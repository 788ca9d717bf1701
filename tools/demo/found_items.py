"""FoundItems: a list that a node found, and the same list from the files of its version, computed in NumPy.

It follows the page on retrieval, and shares no code with the search of nodes: neither the graph of the user tower, nor
the packing of rows, nor the scan. So a list that passes is what the version says, but for the rounding of floats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.cli.model.retrieve import ask_items
from streamlearn.features import Retrieval, keys_of
from streamlearn.features.retrieval import TOWERS, of_retrieval
from streamlearn.samples.item_ids import ItemIds
from streamlearn.table import TableSet
from streamlearn.versions import Chain, Store, load, load_tensors
from streamlearn.versions.format.library_files import are_present, library_in, vectors_in
from streamlearn.versions.format.scratch import record_of, table_of

__all__ = ["FoundItems", "VersionItems", "find", "retrieval_of", "user_of"]

# Products are rounded otherwise in another order; they are below 20, as temperatures are learned.
_DIFFERENCE_MAX = 1e-3


class FoundItems(NamedTuple):
    """What a node found for a user: ids with their scores, best first, of a version."""

    user: Mapping[str, Any]
    k: int
    exclude: Sequence[Any]
    version: int
    ids: tuple[Any, ...]
    scores: tuple[float, ...]


def retrieval_of(app: App) -> Retrieval:
    """Return a retrieval of an application's first label, by the user's id and histories and by all slots of items."""
    features, users = app.features, [app.features.user_slot]
    users += [slot.name for slot in features.slots_of("user") if slot.keys_of == features.item_id]
    items = tuple(slot.name for slot in features.slots_of("item") if slot.computed is None)
    return Retrieval(next(label.name for label in app.labels if label.number is None), tuple(users), items)


def user_of(app: App, user_id: Any, watched: Sequence[Any]) -> dict[str, Any]:
    """Return the features of a user for a retrieval as `retrieval_of` declares it."""
    assert app.retrieval is not None
    name = app.features.user_slot
    return {column: user_id if column == name else list(watched) for column in app.retrieval.user}


def find(
    address: str, user: Mapping[str, Any], k: int, exclude: Sequence[Any] = (), token: str | None = None
) -> FoundItems:
    """Ask a node at its HTTP address; raises ServiceError if it does not answer, or refuses."""
    answer = ask_items(address, "/retrieve", {"user": user, "k": k, "exclude": exclude}, token)
    ids, scores = (tuple(item[name] for item in answer["items"]) for name in ("id", "score"))
    return FoundItems(user, k, exclude, answer["version"], ids, scores)


class VersionItems:
    """What a version finds: its items and their stored vectors, and vectors of users by its rows and weights.

    Attributes:
        ids: The ids of its items.
    """

    def __init__(self, app: App, store: Store, version: int) -> None:
        self._app, self._chain = app, Chain.find(store, app.name, version)
        links = self._chain.links
        library, vectors = library_in(store, links), vectors_in(store, links)
        assert library is not None
        assert vectors is not None
        is_there = np.flatnonzero(are_present(library) & np.isin(library["key"], vectors["key"]))
        ends = library["id$"].astype(np.int32) if "id$" in library else None
        self.ids: list[Any] = list(ItemIds(library["id"], ends).take(is_there).listed())
        at = np.searchsorted(vectors["key"], library["key"][is_there])
        self._vectors = vectors["row"][at].astype(np.float64) * vectors["scale"][at, None]
        self._weights = of_retrieval(load_tensors(store, self._chain.head))

    def wrong(self, found: FoundItems) -> str:
        """Return what is wrong with the items that a node found, in words; empty if nothing is."""
        name, exclude = f"version {found.version}", {*found.exclude}
        if unknown := {*found.ids} - {*self.ids}:
            return f"{name} has no item {sorted(unknown)[0]}, which was found"
        scores = dict(zip(self.ids, (self._vectors @ self._user(found.user)).tolist(), strict=True))
        best = sorted((score for item, score in scores.items() if item not in exclude), reverse=True)[: found.k]
        if len({*found.ids}) != len(found.ids) or len(found.ids) != len(best) or {*found.ids} & exclude:
            return f"{name}: {len(found.ids)} items were found, {len({*found.ids})} distinct; expected {len(best)}"
        own = [scores[item] for item in found.ids]
        for what, expected in (("the products of its items", own), ("the highest products", best)):
            difference = float(np.abs(np.array(found.scores) - expected).max(initial=0.0))
            if not difference <= _DIFFERENCE_MAX:
                return f"{name}: scores differ by {difference:.4f} from {what}"
        return ""

    def _user(self, user: Mapping[str, Any]) -> npt.NDArray[np.float64]:
        """Return the vector of a user as `two_tower` makes it: a sum of rows, a layer, and a temperature."""
        weights = {name: weight.astype(np.float64) for name, weight in self._weights.items()}
        rows = np.zeros(len(weights["user_0"]))
        for name, value in user.items():
            # Of a sequence the newest count, which come last.
            length = self._app.features.slot(name).length
            values = value[-length:] if isinstance(value, list) else [value]
            if values:
                rows += self._rows(name, values).mean(axis=0, dtype=np.float64)
        rows = rows + np.maximum(rows @ weights["user_0"] + weights["user_0_bias"], 0) @ weights["user_1"]
        vector: npt.NDArray[np.float64] = rows / np.sqrt((rows * rows).sum() + 1e-12) * np.exp(weights["scale"][0])
        return vector

    def _rows(self, slot: str, values: list[Any]) -> npt.NDArray[np.float32]:
        return self._tables[TOWERS].lookup(keys_of(self._app.features.slot(slot), values))

    @cached_property
    def _tables(self) -> TableSet:
        files = [entry for link in self._chain.links for entry in link.manifest.files if entry.table == TOWERS]
        tables = table_of(record_of(self._chain.manifest, TOWERS), sum(file.rows for file in files), training=False)
        load(self._chain, tables, rows_only=True)
        return tables
