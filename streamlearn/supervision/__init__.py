"""Supervision: all processes of an application on one machine, started, started again, and stopped in order.

It imports no component: it knows their command lines, and what they say.
"""

from streamlearn.supervision.claim import claimed
from streamlearn.supervision.member import Member
from streamlearn.supervision.plan import planned
from streamlearn.supervision.supervisor import Seen, Signals

__all__ = ["Member", "Seen", "Signals", "claimed", "planned"]
