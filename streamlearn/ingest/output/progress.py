"""Progress: up to which event time each lot's samples are acknowledged, as records of a compacted topic.

A record stays true whatever happens to a run: it is written after the broker has acknowledged the samples. This module
does not know how samples are made, nor where a run begins.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from streamlearn.errors import BadRecord
from streamlearn.schemas import PROGRESS
from streamlearn.schemas.record_prefix import read_framing
from streamlearn.topics import Records

__all__ = ["SHARE_PARTS", "ControlLot", "Lineage", "LotProgress", "Standing", "encode_progress", "fold"]

SHARE_PARTS = 1_000_000


class ControlLot:
    """The lots of control records.

    Attributes:
        CLAIM: Begins a run. The run's number is the record's offset plus one, which is unique and grows. It has the
            run's longest window as its watermark, and as reached the longest of rows that were open (0: unknown).
        STOP: Tells a run to stop reading.
        END: Says that a run has finished lot 0; one less for each further lot.
        READ: Has an offset of the impressions in partition 0 as reached, and the latest timestamp of the records before
            it as watermark. One less is for the actions there; two less for the impressions of the next partition.
        DEAD: Has the share of events that become dead letters as its watermark, in parts of `SHARE_PARTS`.
    """

    CLAIM, STOP, END, DEAD, READ = -1, -2, -3, -(1 << 20), -(1 << 21)


class Lineage(msgspec.Struct, frozen=True):
    """How samples were joined; progress with another lineage does not apply.

    Attributes:
        window_settings: The id of the label windows.
        feature_fingerprint: The fingerprint of samples.
        events_topic_id: The id of the impressions topic.
    """

    lots_count: int
    window_settings: str
    feature_fingerprint: str
    events_topic_id: str
    actions_topic_id: str


class LotProgress(msgspec.Struct, frozen=True):
    """The progress of one lot; or with a negative `lot` a control record.

    Attributes:
        lot: The lot, or a `ControlLot`.
        ingest_run: The run that wrote it.
        watermark_ms: Every sample due before this event time is acknowledged, by any run.
        reached_ms: The same for this run alone.
        wall_ms: When it was written.
    """

    lot: int
    ingest_run: int
    watermark_ms: int
    reached_ms: int
    lineage: Lineage
    wall_ms: int


class Standing(msgspec.Struct, frozen=True):
    """The content of a progress topic.

    Attributes:
        run: The newest run; 0 if there was none.
        window_ms: The newest run's longest window; 0 if unknown.
        inherited_ms: The longest window of rows that were open when it began, its own included; 0 if unknown.
        lots: The last record of each lot.
        stopped: The newest run with a stop record; 0 without one.
        ended: For each lot the newest run that has finished it.
        dead_share: The share of the newest run's recent events that became dead letters.
        read: For twice a partition, plus 1 for its actions: an offset, and the latest timestamp of records before it.
    """

    run: int = 0
    window_ms: int = 0
    inherited_ms: int = 0
    lots: Mapping[int, LotProgress] = {}
    stopped: int = 0
    ended: Mapping[int, int] = {}
    dead_share: float = 0.0
    read: Mapping[int, tuple[int, int]] = {}

    def reached_ms(self, run: int, lots_count: int) -> int | None:
        """Return the event time up to which a run has acknowledged all lots; None until it has written each."""
        own = [lot.reached_ms for lot in self.lots.values() if lot.ingest_run == run and lot.lot < lots_count]
        return min(own) if len(own) == lots_count else None

    @property
    def open_window_ms(self) -> int:
        """The longest window of rows that may be open, 0 if unknown.

        Once the newest run is as far itself as the runs before, rows of their windows are written.
        """
        is_level = all(lot.ingest_run == self.run and lot.reached_ms >= lot.watermark_ms for lot in self.lots.values())
        return self.window_ms if is_level else self.inherited_ms

    def has_ended(self, run: int, lots_count: int) -> bool:
        """Whether a run has finished all lots: everything due is acknowledged."""
        return all(self.ended.get(lot) == run for lot in range(lots_count))


def encode_progress(progress: LotProgress) -> tuple[bytes, bytes]:
    """Return key and value of a record."""
    fields = msgspec.structs.asdict(progress)
    lineage = msgspec.structs.asdict(fields.pop("lineage"))
    return str(progress.lot).encode(), PROGRESS.write({**fields, **lineage})


def fold(standing: Standing, records: Records) -> Standing:
    """Return the content of a progress topic after more of its records. Raises `BadRecord` for other records.

    Records that a run wrote after a newer run began are left out.
    """
    run, lots, stopped = standing.run, dict(standing.lots), standing.stopped
    windows_ms = standing.window_ms, standing.inherited_ms
    ended, dead_share, read = dict(standing.ended), standing.dead_share, dict(standing.read)
    for offset, value in zip(records.offsets.tolist(), records.values, strict=True):
        if value is None:
            continue
        progress = _decode(value)
        if progress.lot == ControlLot.CLAIM:
            run, dead_share, windows_ms = offset + 1, 0.0, (progress.watermark_ms, progress.reached_ms)
        elif progress.lot == ControlLot.STOP:
            stopped = max(stopped, progress.ingest_run)
        elif progress.lot == ControlLot.DEAD:
            dead_share = progress.watermark_ms / SHARE_PARTS if progress.ingest_run >= run else dead_share
        elif progress.lot <= ControlLot.READ:
            read[ControlLot.READ - progress.lot] = (progress.reached_ms, progress.watermark_ms)
        elif progress.lot <= ControlLot.END:
            ended[ControlLot.END - progress.lot] = progress.ingest_run
        elif progress.ingest_run >= run:
            lots[progress.lot] = progress
    return Standing(run, *windows_ms, lots, stopped, ended, dead_share, read)


def _decode(value: bytes) -> LotProgress:
    framing = read_framing(value)
    if framing.fingerprint != PROGRESS.fingerprint:
        message = "a record in the progress topic has another schema"
        hint = "another program or release writes to it; give ingest a progress topic of its own"
        raise BadRecord(message, help=hint)
    fields = PROGRESS.read(value[framing.body_at :])
    lineage = Lineage(**{name: fields.pop(name) for name in Lineage.__struct_fields__})
    return LotProgress(lineage=lineage, **fields)
