"""VersionHits: how often the towers and items of versions find what users chose. It decides nothing.

It searches as nodes do: with the weights, rows and stored vectors of one version, in native code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamlearn.errors import VersionDefect, VersionRefused
from streamlearn.features.retrieval import of_retrieval
from streamlearn.publisher.retrieval_hits import TOP, Found
from streamlearn.samples import SampleBatch
from streamlearn.trainer.columns import StepColumns, columns_in
from streamlearn.trainer.intake.extract import rows_of
from streamlearn.trainer.intake.identity import identity_of
from streamlearn.trainer.towers.item_vectors import ItemVectors, are_searchable
from streamlearn.trainer.towers.popularity import Popularity
from streamlearn.trainer.towers.positives import Positives, are_held_out
from streamlearn.versions import Chain, Store, load_tensors

if TYPE_CHECKING:
    from streamlearn.trainer.towers.tower_steps import TowerMaker

__all__ = ["VersionHits"]

Bools = npt.NDArray[np.bool_]
# A positive costs as much time as there are numbers in all vectors: a third of a second of a core for all of them.
_NUMBERS_MAX = 1 << 35
_POSITIVES_MIN, _POSITIVES_MAX = 128, 4_096
# Positives since the newest version are held of so many steps, and of so many rows of a step.
_STEPS_MAX, _STEP_POSITIVES_MAX = 64, 256
# Counts since the start of a trainer say little before this much event time.
_POPULAR_AFTER_MS = 3_600_000
_VERSIONS_MAX = 4


class VersionHits:
    """Searches the items of versions. It is a `Finder`.

    Positives that are learned are first ranked by the newest committed version, when the next one is written. One
    thread calls all methods but `learn`, which never runs beside `note` and `restart`.
    """

    def __init__(self, store: Store, model: str, dim: int, label: int, towers: TowerMaker) -> None:
        self.vectors, self._popularity = ItemVectors(dim), Popularity()
        self._store, self._model, self._dim, self._label, self._towers = store, model, dim, label, towers
        self._weights_of = lru_cache(_VERSIONS_MAX)(self._read_weights)
        self.restart()

    def restart(self) -> None:
        """Begin with positives anew."""
        self._fresh: list[Positives] = []
        self._steps, self._every, self._now_ms = 0, 1, 0

    def learn(self, columns: StepColumns) -> None:
        """Take the positives of a step that was learned."""
        rows, self._steps = self._towers.rows.positive_rows(columns), self._steps + 1
        if not len(rows) or self._steps % self._every:
            return
        self._now_ms = max(self._now_ms, int(columns.event_time_ms[rows].max()))
        self._fresh.append(self._towers.rows.positives(columns, rows).thinned(_STEP_POSITIVES_MAX))
        if len(self._fresh) > _STEPS_MAX:
            self._fresh, self._every = self._fresh[1::2], 2 * self._every

    def note(self) -> Callable[[], dict[str, float]]:
        """Return what computes the metrics of positives since the newest version, as of a step boundary."""
        fresh, now_ms = self._fresh, self._now_ms
        self.restart()
        return partial(self._metrics, Positives.joined(fresh), now_ms) if fresh else dict

    def found(self, version: int, active: int, batches: Sequence[SampleBatch]) -> Found:
        """Search with both versions; see `Finder`."""
        self.vectors.keep(version, active)
        items = len(self.vectors.blocks(version)), len(self.vectors.blocks(active))
        positives = self._thinned(Positives.joined([self._held_out(batch) for batch in batches]), max(items))
        hits, hits_before = (self._hits(number, positives) for number in (version, active))
        return Found(hits, hits_before, positives.user_index, items[0])

    def _held_out(self, batch: SampleBatch) -> Positives:
        label = batch.labels[self._label]
        rows = np.flatnonzero((label.settles != 0) & (label.value != 0))
        some = rows_of(batch, rows[are_held_out(identity_of(batch, rows))])
        places = np.arange(len(some))
        return self._towers.rows.positives(columns_in(some, places), places)

    def _metrics(self, fresh: Positives, now_ms: int) -> dict[str, float]:
        """Return the hit rates of positives by the newest committed version, and of popularity before them."""
        metrics, version, positives = {}, self.vectors.version, self._thinned(fresh, len(self.vectors))
        try:
            metrics["retrieval_hit_100"] = float(self._hits(version, positives).mean())
            metrics["retrieval_positives"] = float(len(positives))
            if self._popularity.span_ms >= _POPULAR_AFTER_MS:
                popular = self._popularity.top(TOP, self.vectors.has)
                metrics["retrieval_popular_100"] = float(np.isin(positives.keys, popular).mean())
        except VersionRefused:
            metrics = {}  # before the first version, and if the shards have no longer what a version had
        self._popularity.count(fresh.keys, now_ms)
        return metrics

    def _hits(self, version: int, positives: Positives) -> Bools:
        """Return which positives have their item among the first that a version finds for their user."""
        blocks = self.vectors.blocks(version)
        users = self._towers.users(positives, self._weights_of(version), version)
        is_fit = are_searchable(users)  # a node finds nothing for others
        users[~is_fit] = 0.0
        top = blocks.search(users, TOP)[0].reshape(len(users), min(TOP, len(blocks)))[positives.user_index]
        hits: Bools = (top == positives.keys[:, None]).any(axis=1) & is_fit[positives.user_index]
        return hits

    def _thinned(self, positives: Positives, items: int) -> Positives:
        """Return as many positives as a search among so many items may have."""
        most = _NUMBERS_MAX // (max(items, 1) * self._dim)
        return positives.thinned(min(max(most, _POSITIVES_MIN), _POSITIVES_MAX))

    def _read_weights(self, version: int) -> dict[str, npt.NDArray[np.float32]]:
        try:
            chain = Chain.find(self._store, self._model, version)
            return of_retrieval(load_tensors(self._store, chain.head, "dense"))
        except VersionDefect as error:
            message = f"the towers' weights of version {version} cannot be read: {error.message}"
            raise VersionRefused(message, help=error.help) from error
