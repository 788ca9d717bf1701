"""Letters: events that a join could not use, as failures with their origins."""

from __future__ import annotations

import math
from collections.abc import Sequence

from streamlearn.apps import App
from streamlearn.events import Failure, Origin
from streamlearn.ingest.join.columns import LetterKind, Letters

__all__ = ["letters_of"]

_REASONS = {
    LetterKind.IMPRESSION_LATE: "late",
    LetterKind.IMPRESSION_EXCESS: "excess",
    LetterKind.ACTION_LATE: "late",
    LetterKind.ACTION_ORPHAN: "orphan",
    LetterKind.ACTION_EXCESS: "excess",
}
_WHY = {
    LetterKind.ACTION_LATE: "it came after its windows",
    LetterKind.ACTION_ORPHAN: "no impression of its request shows the item",
    LetterKind.ACTION_EXCESS: "its item already has the largest number of actions that make a number",
}

# The years 2001 to 2128 in seconds; as milliseconds, a few weeks of 1970.
_SECONDS = (1_000_000_000, 5_000_000_000)


def letters_of(app: App, topics: Sequence[tuple[str, str]], letters: Letters) -> list[tuple[Failure, Origin]]:
    """Return a join's letters for `LetterBox.give`; `topics` has name and id of the impressions and the actions topic.

    An impression comes with its bytes. A join keeps no bytes of actions: the detail describes the action, and the
    origin names its record.
    """
    return [_letter(app, topics, letters, row) for row in range(len(letters))]


def _letter(app: App, topics: Sequence[tuple[str, str]], letters: Letters, row: int) -> tuple[Failure, Origin]:
    kind = LetterKind(int(letters.kind[row]))
    request_id = letters.request_ids[letters.request_at[row] : letters.request_at[row + 1]].tobytes()
    payload = letters.payload[letters.payload_at[row] : letters.payload_at[row + 1]].tobytes()
    index, time_ms = int(letters.index[row]), int(letters.event_time_ms[row])
    is_impression = kind in (LetterKind.IMPRESSION_LATE, LetterKind.IMPRESSION_EXCESS)
    if is_impression:
        detail = _impression_detail(app, kind, int(letters.groups[row]), index, time_ms)
    else:
        value = float(letters.number[row])
        of_value = "" if math.isnan(value) else f" and value {value:g}"
        action = f"{app.actions[int(letters.code[row])]!r} of weight {float(letters.weight[row]):g}{of_value}"
        item = f"the item of key {int(letters.item[row]):016x}"
        detail = f"{action} on {item} at {time_ms} ms: {_WHY[kind]}{_unit_hint(time_ms)}"
    topic, topic_id = topics[0 if is_impression else 1]
    origin = Origin(topic, topic_id, int(letters.partition[row]), int(letters.offset[row]), time_ms, request_id)
    # The index is that of an action in its record; an impression's is that of its first item.
    return Failure(row, -1 if is_impression else index, _REASONS[kind], detail, payload), origin


def _impression_detail(app: App, kind: LetterKind, groups: int, first_item: int, time_ms: int) -> str:
    shown = f"shown at {time_ms} ms, from item {first_item} of the record on"
    if kind is LetterKind.IMPRESSION_EXCESS:
        return f"{shown}: its request already has the largest number of impressions{_unit_hint(time_ms)}"
    late = [group.name for bit, group in enumerate(app.groups) if groups >> bit & 1]
    joined = "" if len(late) == len(app.groups) else "; it was joined for the other labels"
    return f"{shown}: too late for {', '.join(late)}{joined}{_unit_hint(time_ms)}"


def _unit_hint(time_ms: int) -> str:
    """Say so if a time is one of our decades only in seconds.

    Examples:
        >>> _unit_hint(1_795_464_438), _unit_hint(1_795_464_438_000)
        ('; the time looks like seconds, and has to be in milliseconds', '')
    """
    is_in_seconds = _SECONDS[0] <= time_ms < _SECONDS[1]
    return "; the time looks like seconds, and has to be in milliseconds" if is_in_seconds else ""
