"""Opening a topic's partition where a run begins or continues; refused where that would lose events."""

from __future__ import annotations

from contextlib import ExitStack

from streamlearn.errors import PositionLost
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.topics import Position, Reader, Topic, open_topic
from streamlearn.topics.topic import replaced

__all__ = ["open_at"]


def open_at(plan: ReadPlan, url: str, position: Position | int, topic_id: str) -> tuple[Topic, Reader, Position]:
    """Open one topic's partition at a position, or where the plan begins to read if only its number is given.

    Returns:
        The topic, its reader, and the position to read from.

    Raises:
        TopicReplaced: The topic was deleted and created again.
        PositionLost: The position cannot be read from; or records from T0 on may have been deleted.
    """
    with ExitStack() as stack:
        topic = stack.enter_context(open_topic(url, plan.access))
        if topic.topic_id != topic_id:
            raise replaced(topic.url, topic_id, topic.topic_id)
        partition = position if isinstance(position, int) else position.partition
        positions = () if isinstance(position, int) else (position,)
        reader = stack.enter_context(topic.reader([partition], positions))
        if isinstance(position, int):
            position = Position(topic_id, partition, _begin(plan, reader, partition, url != plan.impressions_url))
        stack.pop_all()
        return topic, reader, position


def _begin(plan: ReadPlan, reader: Reader, partition: int, is_actions: bool) -> int:
    earliest, times_ms = reader.earliest(partition), plan.times_ms(is_actions)
    if times_ms is None:
        return earliest
    needed_ms, from_ms = times_ms
    offset = reader.offset_for_time(partition, max(0, needed_ms))
    # Retention empties a quiet partition. Nothing is lost if all deleted records were read, and are older.
    read_offset, latest_ms = plan.read.get(2 * partition + is_actions, (0, 0))
    is_complete = earliest <= read_offset and latest_ms < needed_ms
    if earliest > 0 and offset <= earliest and not is_complete and not plan.accept_lost:
        message = (
            f"{reader.url} partition {partition}: all records from offset {earliest} on have {needed_ms} ms or later, "
            f"so records from then on may have been deleted (T0 = {plan.start_ms} ms)"
        )
        hint = (
            "events whose samples were not acknowledged may be gone: retain events for longer than the "
            "longest window plus the longest downtime of ingest; start with accept_lost to continue with the "
            "events that remain"
        )
        raise PositionLost(message, help=hint)
    return max(reader.offset_for_time(partition, max(0, from_ms)), earliest)
