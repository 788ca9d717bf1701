"""VersionHits: how often the towers and items of versions find what users chose. It decides nothing.

It searches as nodes do: with the weights, rows and stored vectors of one version, in native code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamlearn.errors import VersionDefect, VersionRefused
from streamlearn.features.retrieval import of_retrieval
from streamlearn.publisher.retrieval_hits import TOP, Found
from streamlearn.samples import SampleBatch
from streamlearn.trainer.columns import StepColumns, columns_in
from streamlearn.trainer.intake.extract import rows_of
from streamlearn.trainer.intake.identity import identity_of
from streamlearn.trainer.towers.item_vectors import ItemVectors
from streamlearn.trainer.towers.popularity import Popularity
from streamlearn.trainer.towers.positives import Positives, SampledPositives, are_held_out
from streamlearn.trainer.towers.tower_rows import TowerRows
from streamlearn.versions import Chain, Store, load_tensors
from streamlearn.versions.format.manifest import RetrievalRecord

__all__ = ["UserTower", "VersionHits"]

Float32s = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
# A positive costs as much time as there are numbers in all vectors: a third of a second of a core for all of them.
_NUMBERS_MAX = 1 << 35
_POSITIVES_MIN, _POSITIVES_MAX = 128, 4_096
# A node refuses larger ones.
_VECTOR_MAX = 1e15
_VERSIONS_MAX = 4
# Counts of positives since the start say little before this much event time.
_POPULAR_AFTER_MS = 3_600_000


class UserTower(Protocol):
    """The user tower."""

    @property
    def rows(self) -> TowerRows:
        """Where positives come from, and rows of users."""

    def users(self, positives: Positives, dense: Mapping[str, Float32s], version: int) -> Float32s:
        """Return the vectors of users, float32[requests, dim], by the weights and rows of a version."""


class VersionHits:
    """Searches the items of versions. It is a `Finder`.

    Positives that are learned are first ranked by the newest committed version, when the next one is written. `learn`
    may run beside the other methods, which one thread calls.
    """

    def __init__(self, store: Store, model: str, record: RetrievalRecord, label: int, tower: UserTower) -> None:
        self.vectors = ItemVectors(record.dim)
        self._store, self._model, self._dim, self._label, self._tower = store, model, record.dim, label, tower
        self._fresh, self._popularity = SampledPositives(2 * _POSITIVES_MAX), Popularity()
        self._weights_of = lru_cache(_VERSIONS_MAX)(self._read_weights)

    def learn(self, columns: StepColumns) -> None:
        """Take the positives of a step that was learned."""
        rows = self._tower.rows.positive_rows(columns)
        rows = rows[self._fresh.choose(columns.identity[rows])]
        if len(rows):
            self._fresh.add(self._tower.rows.positives(columns, rows))

    def forget(self) -> None:
        """Forget the positives that no version has, because they will be learned again."""
        self._fresh.clear()

    def note(self) -> Callable[[], dict[str, float]]:
        """Return what computes the metrics of positives since the newest version, as of a step boundary."""
        return partial(self._metrics, self._fresh.take())

    def found(self, version: int, active: int, batches: Sequence[SampleBatch]) -> Found:
        """Search with both versions; see `Finder`."""
        self.vectors.keep(version, active)
        now, before = (self.vectors.blocks(number) for number in (version, active))
        rows = [self._held_out(batch) for batch in batches]
        ends = np.cumsum([0, *map(len, rows)])
        chosen = self._chosen(int(ends[-1]), max(len(now), len(before)))
        parts = []
        for batch, of_batch, begin, end in zip(batches, rows, ends[:-1], ends[1:], strict=True):
            mine = of_batch[chosen[(chosen >= begin) & (chosen < end)] - begin]
            if len(mine):
                columns = columns_in(rows_of(batch, mine), np.arange(len(mine)))
                parts.append(self._tower.rows.positives(columns, np.arange(len(mine))))
        if not parts:
            return Found(np.zeros(0, np.bool_), np.zeros(0, np.bool_), np.zeros(0, np.int64), len(now))
        positives = Positives.joined(parts)
        hits, hits_before = (self._hits(number, positives) for number in (version, active))
        return Found(hits, hits_before, positives.user_index, len(now))

    def _held_out(self, batch: SampleBatch) -> npt.NDArray[np.int64]:
        label = batch.labels[self._label]
        rows = np.flatnonzero((label.settles != 0) & (label.value != 0))
        return rows[are_held_out(identity_of(batch, rows))]

    def _metrics(self, fresh: Positives | None) -> dict[str, float]:
        """Return the hit rates of positives by the newest committed version, and of popularity before them."""
        if fresh is None or not (version := self.vectors.version):
            return {}
        metrics = {}
        chosen = fresh.take(self._chosen(len(fresh), len(self.vectors)))
        popular = self._popularity.top(TOP, self.vectors.has) if self._popularity.span_ms >= _POPULAR_AFTER_MS else None
        try:
            metrics["retrieval_hit_100"] = float(self._hits(version, chosen).mean())
            metrics["retrieval_positives"] = float(len(chosen))
            if popular is not None:
                metrics["retrieval_popular_100"] = float(np.isin(chosen.keys, popular).mean())
        except VersionRefused:
            metrics = {}  # the shards have no longer what the version had
        self._popularity.count(fresh.keys, fresh.event_time_ms)
        return metrics

    def _hits(self, version: int, positives: Positives) -> Bools:
        """Return which positives have their item among the first that a version finds for their user."""
        blocks = self.vectors.blocks(version)
        users = self._tower.users(positives, self._weights_of(version), version)
        # A node finds nothing with a number that is not finite; comparisons with NaN are false.
        is_fit: Bools = np.all(np.abs(users) <= _VECTOR_MAX, axis=1)
        users[~is_fit] = 0.0
        tops = [np.zeros((0, min(TOP, len(blocks))), np.uint64)]
        for begin in range(0, len(users), _POSITIVES_MAX):
            part = users[begin : begin + _POSITIVES_MAX]
            tops.append(blocks.search(part, TOP)[0].reshape(len(part), -1))
        top = np.concatenate(tops)[positives.user_index]
        hits: Bools = (top == positives.keys[:, None]).any(axis=1) & is_fit[positives.user_index]
        return hits

    def _chosen(self, count: int, items: int) -> npt.NDArray[np.int64]:
        """Return the places of as many positives as a search among so many items may have."""
        most = min(max(_NUMBERS_MAX // (max(items, 1) * self._dim), _POSITIVES_MIN), _POSITIVES_MAX)
        return np.linspace(0, count - 1, min(count, most)).astype(np.int64)

    def _read_weights(self, version: int) -> dict[str, Float32s]:
        try:
            chain = Chain.find(self._store, self._model, version)
            return of_retrieval(load_tensors(self._store, chain.head, "dense"))
        except VersionDefect as error:
            message = f"the towers' weights of version {version} cannot be read: {error.message}"
            raise VersionRefused(message, help=error.help) from error
