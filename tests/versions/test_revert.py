"""A revert makes the newest version what an older one was, bit by bit, for serving and training."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamlearn.errors import Oversize, TableFull, UsageError, VersionDefect
from streamlearn.table import Expiry, RowType, TableSet
from streamlearn.testing import ManualClock
from streamlearn.versions import (
    Chain,
    Cut,
    History,
    Pointer,
    Store,
    TimeSkip,
    Verdict,
    VersionRef,
    VersionWriter,
    compact,
    diff,
    load,
    open_store,
    write_revert,
    write_verdict,
)
from streamlearn.versions.format.manifest import OriginSkip
from streamlearn.versions.format.scratch import Scratch
from streamlearn.versions.pointer.moves import taints_of
from streamlearn.versions.store.settings import ScanSettings
from tests.campaign import every, examples
from tests.versions.history import MODEL, OPTIONS, Trainer, everything, rows_of, serving, split
from tests.versions.seen import beside, known, served

_STEP = st.tuples(
    st.sampled_from(["learn", "forget", "expire", "cut", "cut", "revert", "compact"]),
    st.integers(0, 1_000),
    st.sampled_from(["main", "side"]),
)
_STEPS = 300


def revert(trainer: Trainer, to: int, **named: Any) -> Chain:
    """Revert, and let the trainer go on from there."""
    trainer.last = write_revert(trainer.store, MODEL, to=to, run=trainer.run, **named)
    chain = Chain.find(trainer.store, MODEL)
    trainer.tables = TableSet(OPTIONS)
    load(chain, trainer.tables, training=True)
    return chain


def moved(trainer: Trainer, step: tuple[str, int, str], versions: list[int]) -> None:
    """One step of a random history."""
    what, seed, table = step
    store, newest = trainer.store, versions[-1]
    if what == "learn":
        trainer.learn(seed, 30, table)
    elif what == "forget":
        trainer.forget(seed, 30, table)
    elif what == "expire":
        trainer.tables["main"].expire(Expiry(idle_ms=10**9), now_ms=seed * 1_000, budget_keys=seed)
    elif what == "compact":
        compact(store, MODEL, versions[seed % len(versions)])
    elif what == "cut":
        versions.append(newest + 1 + seed % 3)
        trainer.cut(versions[-1], 1 + seed % 3)
    else:
        to = versions[seed % len(versions)]
        wanted = Chain.find(store, MODEL, to)
        before = known(wanted), served(wanted, "float32"), beside(store, wanted)
        node = serving("float32")
        standing = load(Chain.find(store, MODEL), node)
        chain = revert(trainer, to)
        versions.append(chain.version)
        assert (known(chain), served(chain, "float32"), beside(store, chain)) == before
        # A node that stood at the version before stages it as any other.
        load(Chain.find(store, MODEL, since=standing.ref), node)
        assert rows_of(node, chain.version) == before[1]
        assert chain.manifest.content_of == wanted.ref
        assert chain.manifest.kind == "revert"


@hypothesis_settings(max_examples=examples(12), derandomize=True, database=None)
@given(
    steps=st.lists(_STEP, max_size=25),
    written=st.sampled_from(["float32", "float16", "int8"]),
    to=st.integers(0, 1_000),
)
def test_a_revert_is_what_the_older_version_was(steps: list[tuple[str, int, str]], written: RowType, to: int) -> None:
    fsspec.filesystem("memory").store.clear()
    trainer, versions = Trainer(open_store("memory://reverts"), row_type=written), [1]
    trainer.cut(1)
    for step in [*steps, ("cut", to, "main"), ("revert", to, "main"), ("learn", to, "main"), ("cut", 1, "main")]:
        moved(trainer, step, versions)
    chain = Chain.find(trainer.store, MODEL)
    assert known(chain)[0] == everything(trainer.tables, versions[-1])
    if written != "float32":
        assert served(chain, written) == served(chain, "float32")


@pytest.mark.parametrize(("room_rows", "parts_max"), [(40, 1024), (10_000, 1024), (10_000, 100)])
def test_what_does_not_fit_is_read_in_smaller_ranges(
    local: Store, room_rows: int, parts_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(local)
    trainer.story([1, 2, 3])
    wanted = known(Chain.find(local, MODEL, 2))
    ranges: list[Any] = []

    def counted(*given: Any, **named: Any) -> Any:
        begin, end = named["parts"]
        if end - begin > parts_max:
            message = f"parts {begin} to {end} are too many"
            raise TableFull(message)
        ranges.append((begin, end))
        return load(*given, **named)

    monkeypatch.setattr("streamlearn.versions.format.scratch.load", counted)
    monkeypatch.setattr(Scratch, "_room_rows", room_rows)
    assert known(revert(trainer, 2)) == wanted
    assert (len(set(ranges)) > 4) == (room_rows == 40 or parts_max == 100)


def test_a_part_that_does_not_fit_is_named(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    Trainer(local).story([1, 2])

    def full(*given: Any, **named: Any) -> Any:
        message = "all rows are taken"
        raise TableFull(message)

    monkeypatch.setattr("streamlearn.versions.format.scratch.load", full)
    with pytest.raises(Oversize, match="part 0 of table 'main' does not fit into scan_bytes_max of 2097152 bytes"):
        write_revert(local, MODEL, to=1, run=1, scan=ScanSettings(scan_bytes_max=1 << 21))


def test_versions_whose_deltas_are_gone_can_be_reverted_to(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1, 2, 3, 4])
    wanted = known(Chain.find(local, MODEL, 2)), served(Chain.find(local, MODEL, 2), "float32")
    compact(local, MODEL, 4)
    for version in (3, 4):
        local.remove(f"ctr/deltas/{version:012d}-00000001/manifest.json")
    chain = revert(trainer, 2)
    assert (known(chain), served(chain, "float32")) == wanted


def test_a_revert_passes_over_damaged_versions_between_two_whole_ones(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1, 2, 3, 4])
    wanted = known(Chain.find(local, MODEL, 2)), served(Chain.find(local, MODEL, 2), "float32")
    compact(local, MODEL, 4)
    compared = diff(local, MODEL, 2, 4)
    # Found out when some parts were compared already: of table "side", the last of the files.
    (damaged,) = (Path(local.url.removeprefix("file://")) / "ctr/deltas/000000000003-00000001/rows").glob("side*")
    damaged.chmod(0o644)
    damaged.write_bytes(bytes([damaged.read_bytes()[0] ^ 1]) + damaged.read_bytes()[1:])
    assert diff(local, MODEL, 2, 4) == compared
    chain = revert(trainer, 2)
    assert (known(chain), served(chain, "float32")) == wanted
    # One that the later version is read from is named, as ever.
    trainer.learn(6)
    trainer.cut(6)
    with pytest.raises(VersionDefect, match=r"000000000003-00000001/rows/side.*\(corrupted\)"):
        write_revert(local, MODEL, to=3, run=1)


def test_upkeep_met_since_is_forgotten_even_where_none_was_known(local: Store) -> None:
    trainer = Trainer(local)
    trainer.learn(1, 50)
    trainer.tables.seal(1)
    head = trainer.head(1)

    writer = VersionWriter(local, head)
    writer.add_rows(trainer.tables.changed(None, 1))
    trainer.last = writer.finish(Cut())
    trainer.tables.commit(1)
    trainer.learn(3, 80)
    trainer.cut(2)
    assert known(Chain.find(local, MODEL, 2))[1] != known(Chain.find(local, MODEL, 1))[1]
    wanted = known(Chain.find(local, MODEL, 1))
    assert known(revert(trainer, 1)) == wanted


@pytest.mark.parametrize("shards", [2, 3])
def test_shards_go_on_from_a_revert_as_from_the_older_version(local: Store, shards: int) -> None:
    trainer = Trainer(local)
    for version in (1, 2, 3):
        trainer.learn(version, 150)
        trainer.forget(version + 7, 40)
        trainer.tables["main"].expire(Expiry(idle_ms=10**9), now_ms=version * 1_000, budget_keys=version * 30)
        trainer.cut(version, 1 + version % 3)
    chain, places = revert(trainer, 2), list[Any]()
    for parts in split(shards):
        found = []
        for one in (Chain.find(local, MODEL, 2), chain):
            tables = TableSet(OPTIONS)
            load(one, tables, training=True, parts=parts)
            upkeep = tables["main"].upkeep()
            found.append((everything(tables, one.version), upkeep.pages, upkeep.next_part, upkeep.hands.tolist()))
        assert found[0] == found[1]
        places.append(found[0][2:])
    # Expiry was somewhere, so that there was something to get wrong.
    assert any(begin or any(hands) for begin, hands in places)


def test_skips_are_never_lost(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1])
    first, second = TimeSkip(begin_ms=0, end_ms=5), OriginSkip(topic_id="t", partition=0, begin=3, end=9)
    assert revert(trainer, 1, skips=[first]).manifest.skips == (first,)
    assert revert(trainer, 1, skips=[second, first]).manifest.skips == (first, second)
    assert revert(trainer, 2).manifest.skips == (first, second)


def test_a_revert_takes_the_number_and_run_it_is_given_and_follows_the_newest(local: Store) -> None:
    trainer = Trainer(local)
    _, second = trainer.story([1, 2])
    done = write_revert(local, MODEL, to=1, run=3, version=9, clock=ManualClock(5_000))
    assert (done.manifest.version, done.manifest.run, done.manifest.parent) == (9, 3, second.ref)
    assert done.manifest.written_wall_ms == ManualClock(5_000).wall_ms()
    with pytest.raises(VersionDefect, match="run 1 follows run 3"):
        write_revert(local, MODEL, to=1, run=1)
    with pytest.raises(VersionDefect, match="version 5 does not exist"):
        write_revert(local, MODEL, to=5, run=3)
    with pytest.raises(UsageError, match="version 0 of 'ctr' cannot follow version 9, the newest"):
        write_revert(local, MODEL, to=1, run=3, version=0)


def test_metrics_are_the_older_versions_but_for_what_is_given_and_what_was_obeyed(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1])
    assert trainer.last is not None
    assert trainer.last.manifest.metrics == {"auc": 0.5}
    assert revert(trainer, 1, metrics={"requests_obeyed": 2.0}).manifest.metrics == {"auc": 0.5, "requests_obeyed": 2.0}
    # The first version knew of no request, and none is to be obeyed again.
    assert revert(trainer, 1, metrics={"auc": 0.4}).manifest.metrics == {"auc": 0.4, "requests_obeyed": 2.0}
    with pytest.raises(UsageError, match="numbers must be finite"):
        revert(trainer, 1, metrics={"auc": float("inf")})


@pytest.mark.parametrize("to", [1, 3])
def test_a_revert_of_which_only_its_base_is_left_is_clean_or_tainted_as_before(local: Store, to: int) -> None:
    trainer = Trainer(local)
    for one, outcome in zip(trainer.story([1, 2, 3]), ("passed", "rejected", "passed"), strict=True):
        write_verdict(local, one.folder, Verdict(version=one.ref, outcome=outcome))  # type: ignore[arg-type]
    chain = revert(trainer, to)
    write_verdict(local, chain.head.folder, Verdict(version=chain.ref, outcome="passed"))
    trainer.learn(5)
    trainer.cut(5)
    before = taints_of(Pointer(), History(local, MODEL).read())
    assert before == ({2: 2, 3: 2} if to == 1 else {2: 2, 3: 2, 4: 2, 5: 2})
    compact(local, MODEL, 4)
    local.remove(f"{chain.head.folder}/manifest.json")
    known = History(local, MODEL).read()
    assert (known[3].kind, known[3].ref, known[3].content_of) == ("base", chain.ref, Chain.find(local, MODEL, to).ref)
    assert taints_of(Pointer(), known) == before
    assert all(one.is_whole for one in known)


def test_progress_goes_up_to_all_parts(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1])
    trainer.learn(2)
    trainer.cut(2, 3)
    told: list[tuple[int, int]] = []
    write_revert(local, MODEL, to=2, run=1, progress=lambda done, whole: told.append((done, whole)))
    assert told == sorted(told)
    assert told[-1] == (2 * 1024, 2 * 1024)


def test_only_a_revert_has_the_content_of_another(local: Store) -> None:
    trainer = Trainer(local)
    first, _ = trainer.story([1, 2])
    for changed, said in (
        ({"kind": "revert"}, "a revert has no other version's content"),
        ({"content_of": first.ref}, "a delta has the content of version 1"),
        ({"kind": "base", "content_of": first.ref}, "a base has the content of version 1"),
        ({"kind": "revert", "content_of": msgspec.structs.replace(first.ref, version=3)}, "the content of version 3"),
    ):
        with pytest.raises(VersionDefect, match=said):
            trainer.cut(3, **changed)
        trainer.tables.abandon(3)
    assert isinstance(first.ref, VersionRef)


def test_a_revert_killed_at_any_write_leaves_the_newest_version_as_it_was(tmp_path: Path) -> None:
    ends = _ends(tmp_path, "revert")
    assert ends[-1] == (0, True)
    assert ends[0] == (signal.SIGKILL, False)
    killed = [is_there for number, is_there in ends if number == signal.SIGKILL]
    assert sorted(killed) == killed
    assert len(killed) > 35 // every(2)


def _ends(folder: Path, what: str) -> list[tuple[int, bool]]:
    words = [str(folder / "store"), what, str(_STEPS), str(every(2))]
    command = [sys.executable, "-m", "tests.versions.file_crashes", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return [(one[0], one[1]) for one in json.loads(done.stdout)]
