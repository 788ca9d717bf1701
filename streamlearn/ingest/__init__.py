"""Ingest: reads the events of both topics, joins them by lot, and writes samples and progress."""

from typing import TYPE_CHECKING

from streamlearn.lazy import lazy_names

if TYPE_CHECKING:
    from streamlearn.ingest.backfill.history_range import HistoryRange
    from streamlearn.ingest.backfill.run import BackfillReport, run_backfill
    from streamlearn.ingest.beam.runners import end_at_once
    from streamlearn.ingest.beam.samples_job import SamplesReport, run_samples
    from streamlearn.ingest.join.columns import Joined
    from streamlearn.ingest.join.core import JoinCore
    from streamlearn.ingest.join.plan import JoinPlan
    from streamlearn.ingest.output.progress_log import ProgressLog
    from streamlearn.ingest.reading.plan import ReadPlan
    from streamlearn.ingest.reading.start import begin_run

__all__ = [
    "BackfillReport",
    "HistoryRange",
    "JoinCore",
    "JoinPlan",
    "Joined",
    "ProgressLog",
    "ReadPlan",
    "SamplesReport",
    "begin_run",
    "end_at_once",
    "run_backfill",
    "run_samples",
]

# Loaded on first use: pure modules need no Beam.
__getattr__ = lazy_names(
    __name__,
    {
        "join.plan": "JoinPlan",
        "join.core": "JoinCore",
        "join.columns": "Joined",
        "backfill.run": "BackfillReport run_backfill",
        "backfill.history_range": "HistoryRange",
        "reading.plan": "ReadPlan",
        "output.progress_log": "ProgressLog",
        "beam.runners": "end_at_once",
        "beam.samples_job": "SamplesReport run_samples",
        "reading.start": "begin_run",
    },
)
