"""Restore: loads a version's dense weights, optimizer state and marks into a trainer. The shards restore the rows."""

from __future__ import annotations

from streamlearn.errors import (
    EpochOver,
    PushUnsure,
    ShardNotReady,
    ShardRefused,
    ShardUnreachable,
    UsageError,
    WeightsDiffer,
    WorkerLost,
)
from streamlearn.ps import PsClient
from streamlearn.topics import Position as TopicPosition
from streamlearn.topics import Topic
from streamlearn.trainer.intake.feed import beginning_of
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.learning_loop import Weights
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.versions import Chain, Store, load_tensors
from streamlearn.versions.format.loading import load_bytes
from streamlearn.versions.format.manifest import Position

__all__ = ["RECOVERABLE", "check_samples_after", "later_shard", "lost_store", "positions_of", "restore"]

RECOVERABLE = (PushUnsure, ShardNotReady, ShardUnreachable, EpochOver, WeightsDiffer, WorkerLost)
"""After these errors all shards are restored to the newest committed version, and training continues from there."""


def restore(chain: Chain | None, topic: Topic, weights: Weights, remembered: SharedMarks) -> Reached:
    """Load everything but the rows of a version and return the position where messages continue; None starts afresh.

    `remembered` must be empty.

    Raises:
        UsageError: The version was learned from another topic, or by another optimizer or model.
        VersionDefect: The version cannot be read.
    """
    if chain is None:
        weights.reset()  # passes before the first version may have failed half-way
        return beginning_of(topic)
    head = chain.head
    dense = load_tensors(chain.store, head, "dense")
    weights.load(dense, load_tensors(chain.store, head, "dense_optimizer"))
    reached = remembered.load(load_bytes(chain.store, head, "marks"))
    _check_topic(chain, topic)
    return reached


def positions_of(topic: Topic, reached: Reached) -> tuple[Position, ...]:
    """Return the offsets at which samples continue, as a version keeps them."""
    epochs = reached.leader_epochs or (-1,) * len(reached.offsets)
    return tuple(
        Position(topic=topic.url, topic_id=topic.topic_id, partition=partition, offset=offset, leader_epoch=epoch)
        for partition, (offset, epoch) in enumerate(zip(reached.offsets, epochs, strict=True))
    )


def check_samples_after(chain: Chain, topic: Topic) -> None:
    """Raise `PositionLost` unless a topic still has the samples after a version."""
    positions = [
        TopicPosition(entry.topic_id, entry.partition, entry.offset, entry.leader_epoch)
        for entry in chain.manifest.samples_positions
    ]
    topic.reader(positions=positions).close()


def later_shard(client: PsClient, run: int) -> str:
    """Describe a shard that a later run has restored; empty if there is none."""
    try:
        shards = client.stats()
    except (EpochOver, ShardUnreachable):  # it does not answer this epoch; restoring it gives the reason
        return ""
    later = [shard for shard in shards if shard.epoch is not None and shard.epoch.run > run]
    return f"shard {later[0].place} is in epoch {later[0].epoch}" if later else ""


def lost_store(later: str, store: Store, model: str, run: int) -> ShardRefused:
    """Return the error for a shard of a run that is later than the latest one that the store knows."""
    message = (
        f"{later}, but {store.url} has no run of {model!r} later than this one, {run}: its contents were lost, or it "
        "is another store"
    )
    help = (
        "restore the contents of the store, or set versions.store to the right one; to start over in this one, "
        "restart the shards"
    )
    return ShardRefused(message, help=help)


def _check_topic(chain: Chain, topic: Topic) -> None:
    positions = chain.manifest.samples_positions
    ids, partitions = {entry.topic_id for entry in positions}, sorted(entry.partition for entry in positions)
    if ids != {topic.topic_id} or partitions != list(range(topic.partitions)):
        message = (
            f"version {chain.version} learned from topic {', '.join(sorted(ids)) or 'none'}, partitions {partitions}; "
            f"{topic.url} now is {topic.topic_id} with {topic.partitions}"
        )
        help = "the samples topic was deleted and created again: train a new model, or restore the topic"
        raise UsageError(message, help=help)
