"""The demo: the whole loop as `streamlearn up` runs it, a history that asks it for scores, and what befalls it.

It is a user of this project: it runs its commands, asks nodes over the network and reads their metrics.
"""

from streamlearn.demo.board import Board
from streamlearn.demo.facts import Facts, Promise, facts_of, promises_of
from streamlearn.demo.feed import Feed
from streamlearn.demo.loop import Loop
from streamlearn.demo.poison import Poison
from streamlearn.demo.story import Story
from streamlearn.demo.view import View, watched
from streamlearn.demo.witness import Witness

__all__ = [
    "Board",
    "Facts",
    "Feed",
    "Loop",
    "Poison",
    "Promise",
    "Story",
    "View",
    "Witness",
    "facts_of",
    "promises_of",
    "watched",
]
