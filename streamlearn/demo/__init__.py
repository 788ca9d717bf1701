"""The demo: the whole loop as `streamlearn up` runs it, a history that asks it for scores, and what befalls it.

It is a user of this project: it runs its commands, asks nodes over the network and reads their metrics.
"""

from streamlearn.demo.board import Board
from streamlearn.demo.feed import Feed
from streamlearn.demo.loop import Loop
from streamlearn.demo.witness import Witness

__all__ = ["Board", "Feed", "Loop", "Witness"]
