"""The trainer keeps the library: what was shown and what was written, through failures, restarts and rewinds."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streamlearn.apps import AppFolder
from streamlearn.errors import StoreUnreachable, TopicMissing, UsageError
from streamlearn.samples import SampleBatch
from streamlearn.topics import create_topic, delete_topic
from streamlearn.trainer.intake import item_feed
from streamlearn.trainer.intake.item_feed import ItemFeed
from streamlearn.versions import Chain, Request, Requests, VersionWriter, verify
from streamlearn.versions.format.manifest import Position
from tests.library.history import known
from tests.library.place import kept_app
from tests.library.trained import keep, kept, kept_folder, lengths, write_items
from tests.trainer.failing import Failing
from tests.trainer.runs import run, state_of, store_of
from tests.trainer.stream import learnable_app, learnable_folder, messages_of, write_messages

WRITTEN = [(7, 3, 70), (9_001, 1, 1), (9_002, 1, 2), (9_003, 1, 3), (9_002, 2, None), (9_004, 5, None)]


def manifest_of(folder: AppFolder) -> Any:
    return Chain.find(store_of(folder), folder.app.name).manifest


def positions(folder: AppFolder) -> list[Position]:
    """Those of the topic of items."""
    manifest = manifest_of(folder)
    return list(manifest.positions[len(manifest.samples_positions) :])


def shown(messages: list[tuple[int, SampleBatch]]) -> dict[int, float]:
    """The length with which each item was shown last, read row by row."""
    newest: dict[int, tuple[int, float]] = {}
    for _, batch in messages:
        assert batch.item_ids is not None
        rows = zip(batch.item_ids.listed(), batch.shown_ms(np.arange(len(batch))).tolist(), strict=True)
        for row, (item, shown_ms) in enumerate(rows):
            assert isinstance(item, int)
            length = float(batch.item.dense["length"][row, 0])
            newest[item] = max(newest.get(item, (0, 0.0)), (shown_ms, length))
    return {item: length for item, (_, length) in newest.items()}


def written(folder: AppFolder, count: int = 20) -> list[tuple[int, SampleBatch]]:
    messages = messages_of(folder.app, count)
    write_messages(folder, messages)
    return messages


def test_versions_hold_what_was_shown_and_what_was_written(tmp_path: Path) -> None:
    folder = kept_folder(tmp_path / "app")
    messages = written(folder)
    write_items(folder, WRITTEN)
    keep(folder)
    found = lengths(kept(folder))
    assert {item: found.get(item) for item in (9_001, 9_002, 9_003, 9_004)} == {
        9_001: 1.0,
        9_002: None,
        9_003: 3.0,
        9_004: None,
    }
    expected = shown(messages)
    learned = {item: length for item, length in found.items() if item < 9_000}
    assert learned.keys() == expected.keys() | {7}
    # Items of equal times are shown in several messages: one of their lengths counts.
    assert sum(learned[item] == length for item, length in expected.items()) > 0.9 * len(expected)
    assert manifest_of(folder).metrics["library_items"] == len(found)
    assert sum(entry.offset for entry in positions(folder)) == len(WRITTEN)
    assert [entry.partition for entry in manifest_of(folder).samples_positions] == [0, 1]
    assert verify(store_of(folder), folder.app.name, everything=True).defects == ()


def test_a_run_that_recovers_has_the_library_of_one_that_never_failed(tmp_path: Path) -> None:
    whole, broken = kept_folder(tmp_path / "whole"), kept_folder(tmp_path / "broken", publish_interval_s=0.001)
    for folder in (whole, broken):
        written(folder)
        write_items(folder, WRITTEN)
    keep(whole)
    report = keep(broken, on_step=Failing(2, 3, 7, 12))
    assert report.recoveries == 4
    assert known(kept(broken)) == known(kept(whole))
    assert state_of(broken) == state_of(whole)


def test_a_run_continues_from_the_library_and_the_position_of_the_newest_version(tmp_path: Path) -> None:
    folder, whole = kept_folder(tmp_path / "app"), kept_folder(tmp_path / "whole")
    messages = messages_of(folder.app, 24)
    for some, told in ((messages[:10], WRITTEN[:3]), (messages[10:], WRITTEN[3:])):
        write_messages(folder, some)
        write_items(folder, told)
        keep(folder)
    assert manifest_of(folder).run == 2
    write_messages(whole, messages)
    write_items(whole, WRITTEN)
    keep(whole)
    assert known(kept(folder)) == known(kept(whole))
    assert [entry.offset for entry in positions(folder)] == [entry.offset for entry in positions(whole)]


def test_items_alone_are_news_for_a_version_and_without_news_there_is_none(tmp_path: Path) -> None:
    folder = kept_folder(tmp_path / "app")
    written(folder, 4)
    first = keep(folder).version
    assert keep(folder).version == first
    write_items(folder, WRITTEN)
    second = keep(folder).version
    assert second == first + 1
    chain = Chain.find(store_of(folder), folder.app.name)
    assert sum(entry.rows for entry in chain.head.manifest.of_kind("rows")) == 0
    assert 9_001 in lengths(kept(folder))


def test_a_cut_that_fails_loses_no_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = kept_folder(tmp_path / "app", publish_interval_s=0.001)
    written(folder, 12)
    write_items(folder, WRITTEN)
    finish, calls = VersionWriter.finish, [0]

    def failing(self: VersionWriter, *given: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] in (2, 3):
            message = "the store is away"
            raise StoreUnreachable(message, help="a test")
        return finish(self, *given, **more)

    monkeypatch.setattr(VersionWriter, "finish", failing)
    keep(folder)
    monkeypatch.setattr(VersionWriter, "finish", finish)
    whole = kept_folder(tmp_path / "whole")
    written(whole, 12)
    write_items(whole, WRITTEN)
    keep(whole)
    assert calls[0] > 3
    assert known(kept(folder)) == known(kept(whole))


def test_a_rewind_brings_the_older_library_back_and_reads_the_topic_again(tmp_path: Path) -> None:
    folder = kept_folder(tmp_path / "app")
    write_items(folder, WRITTEN[:2])
    written(folder, 4)
    first = keep(folder).version
    before = known(kept(folder))
    write_items(folder, WRITTEN[2:])
    keep(folder)
    newest = known(kept(folder))
    to = Chain.find(store_of(folder), folder.app.name, first).ref
    Requests(store_of(folder), folder.app.name).ask(Request(to=to, by="ops"))
    report = keep(folder)
    assert report.rewinds == 1
    reverts = [version for version in range(first, report.version + 1) if _kind(folder, version) == "revert"]
    assert known(kept(folder, reverts[-1])) == before
    assert known(kept(folder)) == newest


def _kind(folder: AppFolder, version: int) -> str:
    return Chain.find(store_of(folder), folder.app.name, version).manifest.kind


def test_a_topic_that_was_replaced_is_read_from_its_beginning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = kept_folder(tmp_path / "app")
    written(folder, 4)
    write_items(folder, WRITTEN)
    keep(folder)
    url = folder.topic_url("items")
    delete_topic(url)
    create_topic(url, folder.topic_settings("items", 2), folder.access).close()
    write_items(folder, [(9_005, 9, 5)])
    keep(folder)
    found = lengths(kept(folder))
    assert (found[9_001], found[9_005]) == (1.0, 5.0)
    assert sum(entry.offset for entry in positions(folder)) == 1


def test_a_position_that_is_lost_is_named_and_the_topic_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = kept_folder(tmp_path / "app")
    written(folder, 4)
    keep(folder)
    chain = Chain.find(store_of(folder), folder.app.name)
    with closing(ItemFeed.open(folder)) as feed:
        beyond = Position(topic="there", topic_id=feed._topic.topic_id, partition=0, offset=99)
        changed = msgspec.structs.replace(chain.manifest, positions=(*chain.manifest.samples_positions, beyond))
        feed.restore(replace(chain, head=replace(chain.head, manifest=changed)))
        assert [entry.offset for entry in feed.positions] == [0, 0]
    assert "partition 0 of the items is read from its beginning" in caplog.text


def test_a_samples_topic_that_was_replaced_is_refused_as_ever(tmp_path: Path) -> None:
    folder = kept_folder(tmp_path / "app")
    written(folder, 4)
    write_items(folder, WRITTEN)
    keep(folder)
    delete_topic(folder.topic_url("samples"))
    written(folder, 4)
    with pytest.raises(UsageError, match="learned from topic"):
        keep(folder)


def test_without_a_topic_of_items_there_is_no_training(tmp_path: Path) -> None:
    folder = kept_folder(tmp_path / "app")
    delete_topic(folder.topic_url("items"))
    with pytest.raises(TopicMissing) as missing:
        ItemFeed.open(folder)
    assert "streamlearn topics APP --create" in str(missing.value.help)


def test_records_that_cannot_be_read_are_in_quarantine_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = kept_folder(tmp_path / "app")
    written(folder, 4)
    with folder.open_topic("items") as topic, topic.writer() as writer:
        writer.append(0, [b"garbage", b"{}"], [b"1", b"2"])
    write_items(folder, WRITTEN)
    keep(folder)
    assert 9_001 in lengths(kept(folder))
    quarantine = folder.folder / ".streamlearn" / "kept"
    assert (quarantine / "item-0-0.avro").read_bytes() == b"garbage"
    assert "2 records of items are skipped and put into quarantine; the first, partition 0, offset 0" in caplog.text


def test_a_poll_before_a_version_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = kept_folder(tmp_path / "app")
    write_items(folder, [(item, 1, 1) for item in range(500)])
    monkeypatch.setattr(item_feed, "_READ_RECORDS", 10)
    monkeypatch.setattr(item_feed, "_POLL_BYTES", 300)
    with closing(ItemFeed.open(folder)) as feed:
        feed.restore(None)
        feed.poll()
        assert 0 < len(feed.library) < 60
        feed.catch_up()
        assert len(feed.library) == 500
        feed.catch_up()


def test_items_leave_at_the_same_steps_whatever_is_learned_again(tmp_path: Path) -> None:
    app = kept_app(expire_s=5)
    whole, broken = (
        kept_folder(tmp_path / "whole", app),
        kept_folder(tmp_path / "broken", app, publish_interval_s=0.001),
    )
    for folder in (whole, broken):
        written(folder, 90)
    keep(whole)
    keep(broken, on_step=Failing(9, 20))
    found = known(kept(whole))
    assert known(kept(broken)) == found
    assert 0 < len(kept(whole)) < len(shown(messages_of(app, 90)))


def test_several_passes_keep_what_one_keeps(tmp_path: Path) -> None:
    once, twice = kept_folder(tmp_path / "once"), kept_folder(tmp_path / "twice")
    for folder in (once, twice):
        written(folder, 8)
    keep(once)
    keep(twice, passes=2)
    assert known(kept(twice)) == known(kept(once))


def test_an_application_without_retrieval_has_the_manifest_of_before(tmp_path: Path) -> None:
    path = tmp_path / "plain"
    path.mkdir()
    folder = learnable_folder(path, None, learnable_app())
    written(folder, 4)
    run(folder)
    manifest = manifest_of(folder)
    assert manifest.of_kind("library") == []
    assert "library_items" not in manifest.metrics
    assert manifest.samples_positions == manifest.positions
