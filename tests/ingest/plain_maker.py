"""A maker of samples that reads nothing: features by chance, identities and labels as they were joined."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streamlearn.apps import AppFolder
from streamlearn.events import Failure, Origin
from streamlearn.ingest import Joined, ReadPlan
from streamlearn.ingest.join.columns import Letters
from streamlearn.ingest.output.sample_maker import SampleMaker
from streamlearn.samples import RequestColumns, SampleBatch, SampleHeader
from streamlearn.testing import small_batch


class PlainMaker(SampleMaker):
    """Samples of the small application."""

    def __init__(self, folder: AppFolder, plan: ReadPlan) -> None:
        self._app, self._plan = folder.app, plan

    def make(self, lot: int, joined: Joined, watermark_ms: int) -> list[SampleBatch]:
        return [self._plain(lot, joined, watermark_ms)] if len(joined.rows) else []

    def empty(self, lot: int, watermark_ms: int) -> SampleBatch:
        return replace(small_batch(self._app, 0, 0), header=self._header(lot, watermark_ms))

    def letters_of(self, letters: Letters) -> list[tuple[Failure, Origin]]:
        name, topic_id = self._plan.impressions_url, self._plan.lineage.events_topic_id
        found = []
        for row in range(len(letters)):
            where = int(letters.partition[row]), int(letters.offset[row]), int(letters.event_time_ms[row])
            found.append((Failure(row, 0, "late", "", b""), Origin(name, topic_id, *where, None)))
        return found

    def set_aside(self) -> list[tuple[Failure, Origin]]:
        return []

    def close(self) -> None:
        pass

    def _header(self, lot: int, watermark_ms: int) -> SampleHeader:
        said = self._plan.lineage
        return SampleHeader(
            said.feature_fingerprint, said.window_settings, said.events_topic_id, lot, said.lots_count, self._plan.run,
            watermark_ms,
        )  # fmt: skip

    def _plain(self, lot: int, joined: Joined, watermark_ms: int) -> SampleBatch:
        requests, rows = joined.requests, joined.rows
        one = small_batch(self._app, len(requests), len(rows))
        times = requests.event_time_ms
        labels = tuple(
            replace(
                label,
                value=(rows.labels >> bit & 1).astype(np.uint8),
                settles=(rows.settles >> bit & 1).astype(np.uint8),
            )
            for bit, label in enumerate(one.labels)
        )
        return replace(
            one,
            header=self._header(lot, watermark_ms),
            requests=RequestColumns(
                requests.partition, requests.offset, times, times, np.full(len(requests), -1, np.int64)
            ),
            request_index=rows.request_index,
            item_index=rows.item_index,
            settle_time_ms=rows.settle_time_ms,
            labels=labels,
        )
