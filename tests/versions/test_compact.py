"""A base made of files stands for a version: what is read from it is what was read from the chain, bit by bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamlearn.errors import FileTaken, VersionDefect
from streamlearn.table import RowType
from streamlearn.testing import ManualClock
from streamlearn.versions import Chain, Store, VersionWriter, compact, load, open_store
from streamlearn.versions.upkeep.compaction import Compacted
from tests.campaign import every, examples
from tests.versions.history import MODEL, Trainer, serving
from tests.versions.seen import beside, known, served

_STEP = st.tuples(st.sampled_from(["learn", "forget", "cut"]), st.integers(0, 1_000), st.sampled_from(["main", "side"]))


def versions_of(chain: Chain) -> list[int]:
    return [link.manifest.version for link in chain.links]


@hypothesis_settings(max_examples=examples(12), derandomize=True, database=None)
@given(
    steps=st.lists(_STEP, max_size=20),
    written=st.sampled_from(["float32", "float16", "int8"]),
    shards=st.sampled_from([1, 2, 3]),
    upto=st.integers(0, 100),
)
def test_a_base_is_the_version_it_stands_for(
    steps: list[tuple[str, int, str]], written: RowType, shards: int, upto: int
) -> None:
    fsspec.filesystem("memory").store.clear()
    store = open_store("memory://compaction")
    trainer, versions = Trainer(store, row_type=written), [1]
    trainer.cut(1, shards)
    for what, seed, table in [*steps, ("learn", 7, "main"), ("cut", shards, "main")]:
        if what == "learn":
            trainer.learn(seed, 30, table)
        elif what == "forget":
            trainer.forget(seed, 30, table)
        else:
            versions.append(versions[-1] + 1 + seed % 3)
            trainer.cut(versions[-1], 1 + seed % 3)
    at = versions[1 + upto % (len(versions) - 1)]
    wanted = {version: _seen(store, version, written) for version in (at, versions[-1])}
    done = compact(store, MODEL, at)
    assert (done.is_new, done.ref.version) == (True, at)
    for version, before in wanted.items():
        assert versions_of(Chain.find(store, MODEL, version))[0] == at
        assert _seen(store, version, written) == before


def _seen(store: Store, version: int, row_type: RowType) -> Any:
    chain = Chain.find(store, MODEL, version)
    return known(chain), served(chain, row_type), served(chain), beside(store, chain), chain.ref


def test_the_base_has_the_shards_and_the_words_of_its_version(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1])
    trainer.learn(2)
    second = trainer.cut(2, 3)
    done = compact(local, MODEL, clock=ManualClock(9_000))
    base = Chain.find(local, MODEL).head
    assert base.folder == done.folder == "ctr/bases/000000000002-00000001"
    assert base.manifest.stands_for == base.ref == done.ref == second.ref
    assert {file.shards for file in base.manifest.of_kind("rows")} == {3}
    for name in ("parent", "tables", "positions", "skips", "metrics", "watermark_ms", "graph", "fingerprint"):
        assert getattr(base.manifest, name) == getattr(second.manifest, name)
    assert done.rows == sum(file.rows for file in base.manifest.of_kind("rows"))
    assert done.bytes == sum(file.bytes for file in base.manifest.files)


def test_a_version_that_is_a_base_is_left_as_it_is(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1, 2])
    done = compact(local, MODEL, 1)
    assert (done.ref, done.folder) == (Chain.find(local, MODEL, 1).ref, "ctr/bases/000000000001-00000001")
    assert (done.is_new, done.rows, done.bytes) == (False, 0, 0)
    assert compact(local, MODEL).is_new
    before = sorted(one.path for one in local.walk("ctr"))
    assert not compact(local, MODEL).is_new
    assert sorted(one.path for one in local.walk("ctr")) == before


def test_of_compactors_at_once_one_is_first_and_nothing_is_lost(opened: Callable[..., Store]) -> None:
    trainer = Trainer(opened())
    trainer.story([1, 2, 3])
    wanted, found = known(Chain.find(opened(), MODEL)), list[Compacted]()

    def begin(at: int) -> None:
        # Of one millisecond their manifests would be the same bytes, and so would whoever was first.
        found.append(compact(opened(), MODEL, clock=ManualClock(at)))

    threads = [threading.Thread(target=begin, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.is_new for one in found) == [False, False, True]
    chain = Chain.find(opened(), MODEL)
    assert versions_of(chain) == [3]
    assert known(chain) == wanted


def test_a_compactor_that_comes_last_reads_what_the_first_wrote(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    Trainer(local).story([1, 2])
    finish = VersionWriter.finish

    def late(writer: VersionWriter, *given: Any, **named: Any) -> Any:
        monkeypatch.setattr(VersionWriter, "finish", finish)
        assert compact(local, MODEL, clock=ManualClock(1)).is_new
        return finish(writer, *given, **named)

    monkeypatch.setattr(VersionWriter, "finish", late)
    done = compact(local, MODEL, clock=ManualClock(2))
    assert (done.is_new, done.rows) == (False, 0)
    assert versions_of(Chain.find(local, MODEL)) == [2]


def test_what_was_written_there_by_someone_else_is_an_error(local: Store) -> None:
    Trainer(local).story([1, 2])
    local.create("ctr/bases/000000000002-00000001/manifest.json", b"{}")
    with pytest.raises((VersionDefect, FileTaken)):
        compact(local, MODEL)


def test_nodes_go_on_from_the_base_and_past_it(local: Store) -> None:
    trainer, node = Trainer(local), serving("float32")
    trainer.story([1, 2])
    compact(local, MODEL)
    loaded = load(Chain.find(local, MODEL), node)
    assert [one.version for one in loaded.versions] == [2]
    trainer.story([3])
    compact(local, MODEL)
    assert versions_of(Chain.find(local, MODEL, since=loaded.ref)) == [3]


def test_progress_goes_up_to_all_parts_of_all_tables(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1])
    trainer.learn(2)
    trainer.cut(2, 2)
    told: list[tuple[int, int]] = []
    compact(local, MODEL, progress=lambda done, whole: told.append((done, whole)))
    assert told == sorted(told)
    assert (told[-1], len(told) > 50) == ((2048, 2048), True)


def test_a_compactor_that_is_killed_changes_no_version(tmp_path: Path) -> None:
    words = [str(tmp_path / "store"), "compact", "300", str(every(3))]
    command = [sys.executable, "-m", "tests.versions.file_crashes", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    ends = [tuple(one) for one in json.loads(done.stdout)]
    killed = [is_there for number, is_there in ends if number == signal.SIGKILL]
    assert ends[-1] == (0, True)
    assert sorted(killed) == killed
    assert len(killed) >= 15
