"""Replay: it feeds an application's recorded or generated history through its Producer at a chosen speed."""

from streamlearn.replay.column_history import ColumnHistory, number_options
from streamlearn.replay.computed_history import computed_history
from streamlearn.replay.history import History, HistoryBlock, load_history
from streamlearn.replay.replayer import Replayer
from streamlearn.replay.stop import stop_on_signals
from streamlearn.replay.topics import open_replay_topics

__all__ = [
    "ColumnHistory",
    "History",
    "HistoryBlock",
    "Replayer",
    "computed_history",
    "load_history",
    "number_options",
    "open_replay_topics",
    "stop_on_signals",
]
