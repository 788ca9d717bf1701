"""FoundItems: a list that a node found, and the same list from the files of its version, computed in NumPy.

It follows the page on retrieval, and shares no code with the search of nodes: neither the graph of the user tower, nor
the packing of rows, nor the scan. So a list that passes is what the version says, but for the rounding of floats.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.errors import ServiceError
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
_WAIT_S, _ANSWER_BYTES_MAX = 20.0, 1 << 24


class FoundItems(NamedTuple):
    """The answer of a node: its version, and ids with their scores, best first."""

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


def find(address: str, user: Mapping[str, Any], k: int, token: str | None = None, **more: Any) -> FoundItems:
    """Ask a node, or what leads to nodes, at its HTTP address.

    Raises:
        ServiceError: It does not answer, or refuses.
    """
    headers = {"content-type": "application/json"} | ({} if token is None else {"authorization": f"Bearer {token}"})
    connection = http.client.HTTPConnection(address, timeout=_WAIT_S)
    try:
        connection.request("POST", "/retrieve", json.dumps({"user": dict(user), "k": k, **more}), headers)
        response = connection.getresponse()
        answer = json.loads(response.read(_ANSWER_BYTES_MAX))
        if response.status != http.client.OK:
            message = f"{address} refuses: {answer['error']}"
            raise ServiceError(message, help="see its log")
    except (OSError, http.client.HTTPException, ValueError) as error:
        message = f"no answer from {address}: {error or type(error).__name__}"
        raise ServiceError(message, help="see its log") from None
    finally:
        connection.close()
    items = answer["items"]
    return FoundItems(answer["version"], tuple(i["id"] for i in items), tuple(i["score"] for i in items))


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

    def wrong(self, found: FoundItems, user: Mapping[str, Any], k: int, exclude: Sequence[Any] = ()) -> str:
        """Return what is wrong with the items that a node found for a user, in words; empty if nothing is."""
        name = f"version {found.version}"
        if unknown := {*found.ids} - {*self.ids}:
            return f"{name} has no item {sorted(unknown)[0]}, which was found"
        scores = dict(zip(self.ids, (self._vectors @ self._user(user)).tolist(), strict=True))
        best = sorted((score for item, score in scores.items() if item not in {*exclude}), reverse=True)[:k]
        if len({*found.ids}) != len(found.ids) or len(found.ids) != len(best) or {*found.ids} & {*exclude}:
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
