"""Supervision: all processes of an application on one machine, started, started again, and stopped in order.

It imports no component: it knows their command lines, and what they say.
"""

from streamlearn.supervision.claim import claimed
from streamlearn.supervision.course import Act, Course, GivenUp, Order, Standing, State
from streamlearn.supervision.member import Member
from streamlearn.supervision.plan import Asked, Plan, planned
from streamlearn.supervision.supervisor import Seen, Signals, Supervisor

__all__ = [
    "Act",
    "Asked",
    "Course",
    "GivenUp",
    "Member",
    "Order",
    "Plan",
    "Seen",
    "Signals",
    "Standing",
    "State",
    "Supervisor",
    "claimed",
    "planned",
]
