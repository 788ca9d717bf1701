"""The labels of a topic: each is counted once, and what is skipped is not, unless it was learned before."""

from __future__ import annotations

from pathlib import Path

from streamlearn.apps import AppFolder
from streamlearn.versions.format.manifest import TimeSkip
from tests.trainer.stream import learnable_folder, messages_of, outcomes, write_messages
from tools.demo.sent_labels import count_sent

_ALL = TimeSkip(begin_ms=0, end_ms=1 << 60)


def _written(place: Path) -> tuple[AppFolder, int, int]:
    """An application with samples, some of them repeated or corrected; its labels, and the messages of partition 0."""
    folder = learnable_folder(place)
    messages = messages_of(folder.app, 12)
    write_messages(folder, messages)
    return folder, len(outcomes(messages)), sum(partition == 0 for partition, _ in messages)


def test_each_label_counts_once(tmp_path: Path) -> None:
    folder, labels, _ = _written(tmp_path)
    assert count_sent(folder, (), {}) == (labels, labels)


def test_skipped_labels_count_as_far_as_they_were_learned_before(tmp_path: Path) -> None:
    folder, labels, messages = _written(tmp_path)
    assert count_sent(folder, (_ALL,), {0: -1, 1: -1}) == (0, 0)
    none, begun = count_sent(folder, (_ALL,), {0: 0, 1: -1})
    assert none == 0 < begun, "of the first message a part may have been learned"
    first, _ = count_sent(folder, (_ALL,), {0: 1, 1: -1})
    assert first == begun
    half, _ = count_sent(folder, (_ALL,), {0: messages, 1: -1})
    assert begun < half < labels
    assert count_sent(folder, (_ALL,), {0: messages, 1: messages * 2}) == (labels, labels)
