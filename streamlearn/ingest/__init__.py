"""Ingest: events of both topics, read side by side and cut into lots, with the progress that says what is done."""

from typing import TYPE_CHECKING

from streamlearn.lazy import lazy_names

if TYPE_CHECKING:
    from streamlearn.ingest.acknowledged import Acknowledged, follow, unfollow
    from streamlearn.ingest.backfill import BackfillReport, backfill_pipeline, run_backfill
    from streamlearn.ingest.blob import Blob, Section, decode_blob, encode_blob
    from streamlearn.ingest.cutting import CutLots, lot_handing
    from streamlearn.ingest.handing import Handing, Tickets
    from streamlearn.ingest.history_range import HistoryRange
    from streamlearn.ingest.join_columns import (
        ActionColumns,
        ImpressionColumns,
        Joined,
        JoinedRequests,
        JoinedRows,
        LetterKind,
        Letters,
    )
    from streamlearn.ingest.join_core import JoinCore
    from streamlearn.ingest.join_plan import JoinPlan
    from streamlearn.ingest.joining import JoinLots
    from streamlearn.ingest.letter_box import LetterBox
    from streamlearn.ingest.lot_events import LotEvents, decode_lot, encode_lot
    from streamlearn.ingest.lots import Cut, LotCutter, lots_of
    from streamlearn.ingest.mark import PairMark
    from streamlearn.ingest.pair import PairReader, Taken
    from streamlearn.ingest.plan import ReadLimits, ReadPlan
    from streamlearn.ingest.progress import Lineage, LotProgress, Standing
    from streamlearn.ingest.progress_log import ProgressLog
    from streamlearn.ingest.read_back import ReadBack, ReadBackLimits
    from streamlearn.ingest.runners import end_at_once, runner_options
    from streamlearn.ingest.sample_maker import SampleMaker
    from streamlearn.ingest.sample_sink import MakesSamples, SampleSink
    from streamlearn.ingest.samples_job import SamplesJob, SamplesReport, run_samples, samples_pipeline
    from streamlearn.ingest.source import EventSource, read_events, timestamp_of
    from streamlearn.ingest.start import begin_run, start_ms
    from streamlearn.ingest.statecache import use_byte_sizes
    from streamlearn.ingest.watermark import AFTER_ALL, BEFORE_ALL, TimeRules, TopicClock, watermark_of

__all__ = [
    "AFTER_ALL",
    "BEFORE_ALL",
    "Acknowledged",
    "ActionColumns",
    "BackfillReport",
    "Blob",
    "Cut",
    "CutLots",
    "EventSource",
    "Handing",
    "HistoryRange",
    "ImpressionColumns",
    "JoinCore",
    "JoinLots",
    "JoinPlan",
    "Joined",
    "JoinedRequests",
    "JoinedRows",
    "LetterBox",
    "LetterKind",
    "Letters",
    "Lineage",
    "LotCutter",
    "LotEvents",
    "LotProgress",
    "MakesSamples",
    "PairMark",
    "PairReader",
    "ProgressLog",
    "ReadBack",
    "ReadBackLimits",
    "ReadLimits",
    "ReadPlan",
    "SampleMaker",
    "SampleSink",
    "SamplesJob",
    "SamplesReport",
    "Section",
    "Standing",
    "Taken",
    "Tickets",
    "TimeRules",
    "TopicClock",
    "backfill_pipeline",
    "begin_run",
    "decode_blob",
    "decode_lot",
    "encode_blob",
    "encode_lot",
    "end_at_once",
    "follow",
    "lot_handing",
    "lots_of",
    "read_events",
    "run_backfill",
    "run_samples",
    "runner_options",
    "samples_pipeline",
    "start_ms",
    "timestamp_of",
    "unfollow",
    "use_byte_sizes",
    "watermark_of",
]

# Loaded when asked for: what is pure needs no Beam.
__getattr__ = lazy_names(
    __name__,
    {
        "join_plan": "JoinPlan",
        "join_core": "JoinCore",
        "joining": "JoinLots",
        "join_columns": "ActionColumns ImpressionColumns Joined JoinedRequests JoinedRows LetterKind Letters",
        "acknowledged": "Acknowledged follow unfollow",
        "backfill": "BackfillReport backfill_pipeline run_backfill",
        "blob": "Blob Section decode_blob encode_blob",
        "cutting": "CutLots lot_handing",
        "handing": "Handing Tickets",
        "history_range": "HistoryRange",
        "letter_box": "LetterBox",
        "lot_events": "LotEvents decode_lot encode_lot",
        "lots": "Cut LotCutter lots_of",
        "mark": "PairMark",
        "pair": "PairReader Taken",
        "plan": "ReadLimits ReadPlan",
        "progress": "Lineage LotProgress Standing",
        "progress_log": "ProgressLog",
        "read_back": "ReadBack ReadBackLimits",
        "sample_maker": "SampleMaker",
        "runners": "end_at_once runner_options",
        "sample_sink": "MakesSamples SampleSink",
        "samples_job": "SamplesJob SamplesReport run_samples samples_pipeline",
        "source": "EventSource read_events timestamp_of",
        "start": "begin_run start_ms",
        "statecache": "use_byte_sizes",
        "watermark": "AFTER_ALL BEFORE_ALL TimeRules TopicClock watermark_of",
    },
)
