"""Events: what was shown and what was done, between an application's processes and its topics."""

from streamlearn.events.columns import join_rows, rows_of, take_rows, texts_of
from streamlearn.events.dead_letter import Origin, dead_letter
from streamlearn.events.decoder import EventDecoder
from streamlearn.events.encoder import EncodedEvents, EventEncoder
from streamlearn.events.event import EventColumns, Events, Failure
from streamlearn.events.logged import is_logged
from streamlearn.events.producer import Producer

__all__ = [
    "EncodedEvents",
    "EventColumns",
    "EventDecoder",
    "EventEncoder",
    "Events",
    "Failure",
    "Origin",
    "Producer",
    "dead_letter",
    "is_logged",
    "join_rows",
    "rows_of",
    "take_rows",
    "texts_of",
]
