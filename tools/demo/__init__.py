"""The demo: the loop as `streamlearn up` runs it, a history that asks nodes for scores, and a scenario of faults.

It uses this project as a user does: it runs commands, asks nodes over the network and reads metrics.
"""

from tools.demo.board import Board
from tools.demo.change import Change
from tools.demo.feed import Feed
from tools.demo.loop import Loop
from tools.demo.witness import Witness

__all__ = ["Board", "Change", "Feed", "Loop", "Witness"]
