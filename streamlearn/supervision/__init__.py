"""Supervision: starts, restarts and stops all processes of an application on one machine.

It imports no component: it knows their command lines and the messages of `streamlearn.pulse`.
"""

from streamlearn.supervision.claim import claimed
from streamlearn.supervision.member import Member
from streamlearn.supervision.node_sockets import node_sockets, taken_over
from streamlearn.supervision.plan import planned
from streamlearn.supervision.supervisor import Seen, Signals

__all__ = ["Member", "Seen", "Signals", "claimed", "node_sockets", "planned", "taken_over"]
