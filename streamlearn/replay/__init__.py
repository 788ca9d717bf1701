"""Replay: an application's recorded or generated history, fed through its Producer at a chosen speed."""

from streamlearn.replay.columns import join_rows, rows_of, take_rows, texts_of
from streamlearn.replay.history import History, HistoryBlock, load_history
from streamlearn.replay.replayer import Replayer, ReplayProgress, ReplayReport
from streamlearn.replay.stop import stop_on_signals
from streamlearn.replay.topics import open_replay_topics

__all__ = [
    "History",
    "HistoryBlock",
    "ReplayProgress",
    "ReplayReport",
    "Replayer",
    "join_rows",
    "load_history",
    "open_replay_topics",
    "rows_of",
    "stop_on_signals",
    "take_rows",
    "texts_of",
]
