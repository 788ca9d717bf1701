"""What fails leaves nothing behind: refused exports, versions given up, trainers that were replaced, damaged files."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import pytest

from streamlearn.errors import (
    CutFailed,
    EpochOver,
    PushUnsure,
    ShardNotReady,
    StreamlearnError,
    TableFull,
    VersionDefect,
)
from streamlearn.ps import Epoch, PsClient, Shelf
from streamlearn.versions import Store, VersionRef
from tests.ps.conftest import listening
from tests.ps.model import KEYS, MODEL, OPTIONS, Twin, committed, head


def test_an_export_against_a_version_that_is_not_kept_leaves_no_trace(client: PsClient, store: Store) -> None:
    twin = Twin()
    twin.step(client, 1)
    first = committed(client, store, 1, None).ref
    twin.step(client, 2)
    second = committed(client, store, 2, first).ref
    client.seal(3)
    with pytest.raises(CutFailed):
        client.export(head(3, first))
    assert client.export(head(3, second))
    client.abandon(3)
    twin.step(client, 3)
    third = committed(client, store, 4, second).ref
    client.restore(Epoch(2), None)
    client.restore(Epoch(3), third)
    twin.check(client)


def test_a_number_that_is_sealed_again_is_written_again(client: PsClient, store: Store) -> None:
    twin = Twin()
    twin.step(client, 1)
    client.seal(1)
    client.export(head(1, None))
    client.abandon(1)
    twin.step(client, 2)
    newest = committed(client, store, 1, None).ref
    client.restore(Epoch(2), None)
    client.restore(Epoch(3), newest)
    twin.check(client)


def test_versions_that_are_given_up_one_after_another_take_no_more_memory(client: PsClient, store: Store) -> None:
    twin = Twin()
    twin.step(client, 1)
    newest = committed(client, store, 1, None).ref
    rows = []
    for version in range(2, 9):
        twin.step(client, version)
        client.seal(version)
        twin.step(client, 10 * version)
        client.abandon(version)
        rows.append(sum(table.rows for one in client.stats() for table in one.tables.values()))
    assert rows[-1] <= rows[1] + len(KEYS)
    newest = committed(client, store, 9, newest).ref
    client.restore(Epoch(2), None)
    client.restore(Epoch(3), newest)
    twin.check(client)


def test_after_a_push_that_failed_half_way_nothing_is_pushed_or_cut(store: Store) -> None:
    small = [msgspec.structs.replace(OPTIONS[0], rows_max=1)]
    keys = np.arange(60_000, dtype=np.uint64)
    with PsClient.local(small, Shelf(store, MODEL)) as client:
        client.restore(Epoch(1), None)
        with pytest.raises(TableFull):
            client.push("main", keys, np.ones((len(keys), 8), np.float32), now_ms=0)
        for call in (
            lambda: client.seal(1),
            lambda: client.push("main", keys[:1], np.ones((1, 8), np.float32), now_ms=0),
        ):
            with pytest.raises(PushUnsure):
                call()
        client.restore(Epoch(2), None)
        client.push("main", keys[:1], np.ones((1, 8), np.float32), now_ms=0)


def test_of_two_trainers_of_one_epoch_the_second_is_refused(store: Store) -> None:
    with ExitStack() as stack:
        settings = listening(stack, store, 2)
        first, second = (stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings)) for _ in range(2))
        first.restore(Epoch(1), None)
        Twin().step(first, 1)
        with pytest.raises(EpochOver):
            second.restore(Epoch(1), None)
        second.restore(Epoch(2), None)
        Twin().check(second)
        # And the one that was replaced is told so, and may come back under a higher epoch.
        for call in (lambda: first.seal(1), lambda: first.pull("main", KEYS)):
            with pytest.raises(EpochOver):
                call()
        first.restore(Epoch(3), None)
        Twin().step(first, 2)


def test_who_comes_too_late_ends_no_export(store: Store) -> None:
    with ExitStack() as stack:
        settings = listening(stack, store, 1)
        client = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings))
        client.restore(Epoch(5), None)
        Twin().step(client, 1)
        client.seal(1)
        first = client.export(head(1, None))
        late = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings))
        with pytest.raises(StreamlearnError):
            late.restore(Epoch(2), None)
        assert client.export(head(1, None)) == first


def test_a_damaged_file_is_named_on_shards_as_it_is_in_process(client: PsClient, store: Store, tmp_path: Path) -> None:
    Twin().step(client, 1)
    newest = committed(client, store, 1, None).ref
    for file in (tmp_path / "versions").rglob("rows/*.arrow"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.chmod(0o644)
        file.write_bytes(bytes(data))
    client.restore(Epoch(2), None)
    with pytest.raises(VersionDefect) as found:
        client.restore(Epoch(3), newest)
    assert found.value.defect == "corrupted"
    with pytest.raises((ShardNotReady, EpochOver)):
        client.pull("main", KEYS)
    client.restore(Epoch(4), None)
    Twin().step(client, 2)


def test_a_version_of_another_number_is_refused_before_anything_is_sealed(client: PsClient, store: Store) -> None:
    with pytest.raises(ValueError, match="version"):
        client.seal(-1)
    twin = Twin()
    twin.step(client, 1)
    newest: VersionRef = committed(client, store, 1, None).ref
    assert newest.version == 1
