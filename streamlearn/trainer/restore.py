"""Restored: what of a version is not rows, brought back into a learner and its marks."""

from __future__ import annotations

from streamlearn.errors import UsageError
from streamlearn.topics import Topic
from streamlearn.trainer.intake.feed import beginning_of
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.shared_marks import Remembered
from streamlearn.versions import Chain, load_tensors
from streamlearn.versions.format.loading import load_bytes

__all__ = ["restore"]


def restore(chain: Chain | None, topic: Topic, learner: Learner, remembered: Remembered) -> Reached:
    """Bring everything but rows to where a version has it; gives where messages go on.

    Args:
        chain: The version; None begins anew.
        topic: Of samples.
        learner: Takes dense weights and their optimizer's state.
        remembered: Takes marks; it has none yet.

    Raises:
        UsageError: The version learned from another topic, or by another optimizer or model.
        VersionDefect: It cannot be read.
    """
    if chain is None:
        return beginning_of(topic)
    head = chain.head
    dense = load_tensors(chain.store, head, "dense")
    learner.load(dense, load_tensors(chain.store, head, "dense_optimizer"))
    reached = remembered.load(load_bytes(chain.store, head, "marks"))
    _check_topic(chain, topic)
    return reached


def _check_topic(chain: Chain, topic: Topic) -> None:
    positions = chain.manifest.positions
    ids, partitions = {one.topic_id for one in positions}, sorted(one.partition for one in positions)
    if ids != {topic.topic_id} or partitions != list(range(topic.partitions)):
        message = (
            f"version {chain.version} learned from topic {', '.join(sorted(ids)) or 'none'}, partitions {partitions}; "
            f"{topic.url} now is {topic.topic_id} with {topic.partitions}"
        )
        raise UsageError(
            message, help="the samples topic was deleted and created again: train a new model, or restore the topic"
        )
