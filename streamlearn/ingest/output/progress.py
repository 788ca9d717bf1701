"""Progress: up to which event time each lot's samples are acknowledged, as records of a compacted topic.

What is written here is true whatever happens to a run: it is written after the broker has acknowledged the samples.
It does not know how samples are made, nor from where a run starts.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from streamlearn.errors import BadRecord
from streamlearn.schemas import PROGRESS
from streamlearn.schemas.record_prefix import read_framing
from streamlearn.topics import Records

__all__ = [
    "Lineage",
    "LotProgress",
    "Standing",
    "claim_record",
    "dead_record",
    "encode_progress",
    "end_record",
    "fold",
    "stop_record",
]

# The lot of the record by which a run begins: its number is that record's offset plus one, which nobody else can
# have and which only grows.
_CLAIM = -1
# The lot of the record by which a run is told to stop reading.
_STOP = -2
# Of the record by which a run says that nothing more follows of lot 0; one less for each further lot.
_END = -3
# Of the record by which a run says which share of its events become dead letters: below those of all lots' ends.
_DEAD = -(1 << 20)
_PARTS = 1_000_000


class Lineage(msgspec.Struct, frozen=True):
    """What samples were joined by; progress of another lineage says nothing of this one.

    Attributes:
        lots_count: How many lots there are.
        window_settings: The id of the label windows.
        feature_fingerprint: The fingerprint of samples.
        events_topic_id: The id of the impressions topic.
        actions_topic_id: The id of the actions topic.
    """

    lots_count: int
    window_settings: str
    feature_fingerprint: str
    events_topic_id: str
    actions_topic_id: str


class LotProgress(msgspec.Struct, frozen=True):
    """How far one lot is.

    Attributes:
        lot: Which.
        ingest_run: The run that wrote it.
        watermark_ms: Every sample due before this event time is acknowledged, by whichever run.
        reached_ms: What that run alone has acknowledged.
        lineage: What its samples were joined by.
        wall_ms: When it was written.
    """

    lot: int
    ingest_run: int
    watermark_ms: int
    reached_ms: int
    lineage: Lineage
    wall_ms: int


class Standing(msgspec.Struct, frozen=True):
    """What a progress topic says.

    Attributes:
        run: The newest run; 0 when there was none.
        lots: The last word about each lot.
        stopped: The newest run that was told to stop reading; 0 when none was.
        ended: For each lot the newest run of which nothing more follows.
        dead_share: The share of the newest run's recent events that became dead letters.
    """

    run: int = 0
    lots: Mapping[int, LotProgress] = {}
    stopped: int = 0
    ended: Mapping[int, int] = {}
    dead_share: float = 0.0

    def reached_ms(self, run: int, lots_count: int) -> int | None:
        """The event time up to which one run has acknowledged all lots; None while it has not written of each."""
        own = [one.reached_ms for one in self.lots.values() if one.ingest_run == run and one.lot < lots_count]
        return min(own) if len(own) == lots_count else None

    def has_ended(self, run: int, lots_count: int) -> bool:
        """Whether nothing more follows of a run: all that was due in each lot is acknowledged."""
        return all(self.ended.get(lot) == run for lot in range(lots_count))


def claim_record(lineage: Lineage, wall_ms: int) -> tuple[bytes, bytes]:
    """Key and value of the record by which a run begins."""
    return encode_progress(LotProgress(_CLAIM, 0, 0, 0, lineage, wall_ms))


def stop_record(run: int, lineage: Lineage, wall_ms: int) -> tuple[bytes, bytes]:
    """Key and value of the record by which a run is told to stop reading."""
    return encode_progress(LotProgress(_STOP, run, 0, 0, lineage, wall_ms))


def end_record(run: int, lot: int, lineage: Lineage, wall_ms: int) -> tuple[bytes, bytes]:
    """Key and value of the record by which a run says that nothing more follows of a lot."""
    return encode_progress(LotProgress(_END - lot, run, 0, 0, lineage, wall_ms))


def dead_record(run: int, share: float, lineage: Lineage, wall_ms: int) -> tuple[bytes, bytes]:
    """Key and value of the record by which a run says which share of its events become dead letters."""
    return encode_progress(LotProgress(_DEAD, run, round(share * _PARTS), 0, lineage, wall_ms))


def encode_progress(progress: LotProgress) -> tuple[bytes, bytes]:
    """Key and value of a record."""
    fields = msgspec.structs.asdict(progress)
    lineage = msgspec.structs.asdict(fields.pop("lineage"))
    return str(progress.lot).encode(), PROGRESS.write({**fields, **lineage})


def fold(standing: Standing, records: Records) -> Standing:
    """What a progress topic says after more of its records.

    Progress that a run wrote after a newer one had begun is left out.

    Raises:
        BadRecord: A record is no progress.
    """
    run, lots, stopped = standing.run, dict(standing.lots), standing.stopped
    ended, dead_share = dict(standing.ended), standing.dead_share
    for offset, value in zip(records.offsets.tolist(), records.values, strict=True):
        if value is None:
            continue
        progress = _decode(value)
        if progress.lot == _CLAIM:
            run, dead_share = offset + 1, 0.0
        elif progress.lot == _STOP:
            stopped = max(stopped, progress.ingest_run)
        elif progress.lot == _DEAD:
            dead_share = progress.watermark_ms / _PARTS if progress.ingest_run >= run else dead_share
        elif progress.lot <= _END:
            ended[_END - progress.lot] = progress.ingest_run
        elif progress.ingest_run >= run:
            lots[progress.lot] = progress
    return Standing(run, lots, stopped, ended, dead_share)


def _decode(value: bytes) -> LotProgress:
    framing = read_framing(value)
    if framing.fingerprint != PROGRESS.fingerprint:
        message = "a record in the progress topic has another schema"
        raise BadRecord(
            message, help="another program or release writes to it; give ingest a progress topic of its own"
        )
    fields = PROGRESS.read(value[framing.body_at :])
    lineage = Lineage(**{name: fields.pop(name) for name in Lineage.__struct_fields__})
    return LotProgress(lineage=lineage, **fields)
