"""Events: impressions and actions, as they pass between an application's processes and its topics."""

from streamlearn.events.columns import join_rows, rows_of, take_rows, text_columns, texts_of
from streamlearn.events.dead_letter import Origin
from streamlearn.events.decoder import EventDecoder
from streamlearn.events.encoder import EventEncoder
from streamlearn.events.event import EventColumns, Events, Failure
from streamlearn.events.producer import Producer
from streamlearn.events.request_sampling import is_logged

__all__ = [
    "EventColumns",
    "EventDecoder",
    "EventEncoder",
    "Events",
    "Failure",
    "Origin",
    "Producer",
    "is_logged",
    "join_rows",
    "rows_of",
    "take_rows",
    "text_columns",
    "texts_of",
]
