"""NodeRetrieval: what finds items on a node: a front and lanes of its own, and the items of each version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UnsetType, structs

from streamlearn.apps import AppFolder
from streamlearn.errors import VersionRefused
from streamlearn.features.retrieval import of_retrieval
from streamlearn.models.tensorflow_load import load_tensorflow
from streamlearn.native import native
from streamlearn.serving.front import Front
from streamlearn.serving.graphs.compile_cache import CompileCache
from streamlearn.serving.item_indexes import ItemIndexes
from streamlearn.serving.lanes.lanes import Lanes
from streamlearn.serving.model_schema import ItemInputs
from streamlearn.serving.node_lists import NodeLists
from streamlearn.serving.node_metrics import filled, single
from streamlearn.serving.servable_versions import Answer, FrontVersions
from streamlearn.settings import ServingSettings
from streamlearn.settings.front import AllowanceSettings
from streamlearn.table import TableSet
from streamlearn.telemetry import counter_family, gauge_family, histogram_family
from streamlearn.versions import Committed, Store, VersionRef, load_tensors
from streamlearn.versions.pointer.moves import Canary

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from streamlearn.models.tf_calls import Place

__all__ = ["NodeRetrieval"]

# With more users in one search, a user costs as much, and each waits longer.
_USERS_MAX = 64
_SAMPLED = "Best items of sampled requests, by whether the cells that were searched had them"
_FILLED = "Candidates whose features were left out, by whether the library of the version has them"


class NodeRetrieval:
    """Finds items for users on a node, as model MODEL.retrieve.

    Its lanes are threads of the node, on the CPU, whatever the lanes that score are: they search the items, which are
    in this process. `tables` are the names of tables in the order in which rows are read.

    Attributes:
        indexes: The items of the versions that are loaded.
        lists: The lists with which it answers in place of a search; None if there are none.
    """

    def __init__(
        self, folder: AppFolder, store: Store, tables: Sequence[str], cache: CompileCache | None, *, has_lists: bool
    ) -> None:
        app, settings = folder.app, folder.settings.retrieval
        assert app.towers is not None
        assert app.retrieval is not None
        self._app, self._store, self._dim = app, store, app.retrieval.dim
        self._serving = _lane_settings(folder.serving, settings.lanes)
        slot = app.towers.slot(app.features.item_id)
        salt, is_text = native.slot_salt(slot.salt_name), slot.value == "str"
        items = ItemInputs(salt, is_text, settings.k_max, self._dim)
        self.front = Front(app, tables, self._serving, folder.settings.front, AllowanceSettings(), items=items)
        self.indexes = ItemIndexes(store, app.features, dim=self._dim, probes=settings.probes)
        places = _places(folder.serving, settings.lanes)
        from streamlearn.serving.lanes.lane_threads import LaneThreads

        self._kind = LaneThreads(self._serving, cache, places, self.front.set_costs)
        self.lists = NodeLists(folder, self.front.native) if has_lists and settings.nearline != "off" else None
        self._versions = FrontVersions(self.front.native)
        self.front.connect(self._versions, self._kind.check)
        self._active: VersionRef | None = None

    def start(self, node: Any, ranking: Any, usable: Callable[[int], Sequence[VersionRef]]) -> None:
        """Answer what a native node is asked from now on; `ranking` is its native front that scores.

        `usable` returns versions whose lists may be answered; see `Replica.usable`.
        """
        self._ranking = ranking
        node.retrieve_by(self.front.native)
        if self.lists is not None:
            self.lists.start(node, usable)
        nice, failures_max = self._serving.lane_nice, self._serving.lane_failures_max
        self.lanes = Lanes(self.front, self.front.score, self._kind.places, failures_max, nice=nice)

    def stage(self, version: Committed, tables: TableSet, graph: Callable[[str], Path]) -> Any:
        """Prepare a version, and return what describes its items; see `Hooks.stage`.

        `graph` returns the folder of a graph.

        Raises:
            VersionRefused: It has no towers, or others than the application.
        """
        record, name = version.manifest.retrieval, f"version {version.ref.version} of {self._app.name!r}"
        items = self.indexes.of(version.ref)
        if isinstance(record, UnsetType) or items is None:
            message = f"{name} has no towers or no items, but this application retrieves"
            raise VersionRefused(message, help="use a version that was trained with App(retrieval=...)")
        executables, _ = self._kind.graph(record.graph, graph(record.graph))
        described, towers = executables.described, self._app.towers
        assert towers is not None
        made_for = record.fingerprint, described.features, len(described.labels)
        expected = self._app.retrieval_fingerprint, towers.fingerprint, self._dim
        if made_for != expected:
            message = f"{name} was made for towers {made_for}, not for {expected}, which this application declares"
            raise VersionRefused(message, help="serve it with the application folder it was trained with")
        dense = of_retrieval(load_tensors(self._store, version))
        # The graphs take what the user tower reads; vectors of items are made when a version is published.
        taken = {weight.name: dense[weight.name] for weight in described.weights if weight.name in dense}
        self._versions.add(
            version.ref, tables, Answer(executables, self._kind.weights(executables, taken)), items.found
        )
        return items.features

    def activate(self, version: VersionRef, canary: Canary | None) -> None:
        """See `Hooks.activate`; a canary in shadow finds nothing, because vectors are not compared."""
        if self.lists is not None:
            self.lists.follow()
        self._versions.activate(version, None if canary is not None and canary.shadow else canary)
        self._active = version

    def retire(self, version: VersionRef) -> None:
        """See `Hooks.retire`."""
        self._versions.retire(version)
        self.indexes.retire(version)

    def end(self) -> None:
        """Answer what waits, and let lanes end."""
        self.front.native.drain()
        self.front.end()
        self._kind.end()

    def close(self, wait_s_max: float) -> None:
        """Wait for the lanes, and free everything."""
        if self.lists is not None:
            self.lists.close()
        self.lanes.join(wait_s_max)
        self._kind.close()

    def collect(self) -> Iterator[Metric]:
        """Yield its metrics."""
        if self.lists is not None:
            yield from self.lists.collect()
        measures = self.front.native.measured()
        requests, scanned = measures.found
        yield single(counter_family("retrieval", "requests", "Requests for which items were found"), requests)
        yield single(
            counter_family("retrieval", "scanned_items", "Items whose vectors were scanned, per user"), scanned
        )
        recalled = counter_family("retrieval", "sampled_items", _SAMPLED, ["outcome"])
        for outcome, count in zip(("found", "missed"), measures.recall, strict=True):
            recalled.add_metric([outcome], count)
        yield recalled
        refused = counter_family("retrieval", "refused_requests", "Requests for items refused, by reason", ["reason"])
        for reason, count in measures.refusals.items():
            refused.add_metric([reason], count)
        yield refused
        help = "Time to search the items for the users of a TensorBatch"
        yield filled(histogram_family("retrieval", "search", "seconds", help), measures.searches, 1e-6)
        candidates = counter_family("retrieval", "filled_candidates", _FILLED, ["library"])
        for outcome, count in zip(("known", "unknown"), self._ranking.measured().filled, strict=True):
            candidates.add_metric([outcome], count)
        yield candidates
        items = None if self._active is None else self.indexes.of(self._active)
        help_items = "Items with a vector in the version that answers"
        yield single(
            gauge_family("retrieval", "library", "items", help_items), 0 if items is None else len(items.blocks)
        )


def _lane_settings(serving: ServingSettings, lanes: int) -> ServingSettings:
    """Return the settings of lanes that run the user tower: a request is one user, and one candidate without inputs."""
    users = [users for users in serving.users_buckets if users <= _USERS_MAX] or [_USERS_MAX]
    return structs.replace(
        serving, users_buckets=users, candidates_buckets=users, lengths=[], lanes=lanes, device="cpu",
        lane_processes=False,
    )  # fmt: skip


def _places(serving: ServingSettings, lanes: int) -> list[Place]:
    """Return the CPU for each lane. TensorFlow is set up already if the lanes that score are threads, too."""
    load_tensorflow()
    from streamlearn.models.tf_calls import Place
    from streamlearn.serving.lanes.device import cpu_only

    if serving.lane_processes:
        cpu_only()
    return [Place("/CPU:0") for _ in range(lanes)]
