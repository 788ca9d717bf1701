"""Chains: which versions make one, which run's history prevails, and what is refused by name."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamlearn.errors import FileTaken, Oversize, UsageError, VersionDefect
from streamlearn.features.names import model_fingerprint
from streamlearn.table import TableSet
from streamlearn.testing import ManualClock
from streamlearn.versions import Chain, Committed, Cut, Store, VersionRef, VersionWriter, load, open_store
from streamlearn.versions.format.writer import assemble, commit
from streamlearn.versions.store.interface import Entry
from streamlearn.versions.store.settings import LoadSettings
from tests.versions.history import MODEL, OPTIONS, Trainer, everything, rows_of, serving


def versions_of(chain: Chain) -> list[int]:
    return [link.manifest.version for link in chain.links]


def empty(trainer: Trainer, version: int, after: Committed, **changed: Any) -> Committed:
    """A version in which nothing changed."""
    head = trainer.head(version, **({"parent": after.ref, "kind": "delta"} | changed))
    writer = VersionWriter(trainer.store, head)
    writer.add_rows([])
    # Past the checks of `finish`: what is tested is what reads it.
    manifest = assemble(head, Cut(), writer.entries, written_wall_ms=0)
    return commit(trainer.store, manifest, bytes_max=1 << 20)


def refused(store: Store, defect: str, upto: int | None = None, **named: Any) -> VersionDefect:
    with pytest.raises(VersionDefect) as found:
        Chain.find(store, MODEL, upto, **named)
    assert found.value.defect == defect
    assert f"({defect})" in found.value.message
    assert found.value.help
    assert found.value.path in found.value.message
    return found.value


def test_a_chain_is_a_base_and_the_deltas_after_it(local: Store) -> None:
    Trainer(local).story([1, 2, 5, 9])
    chain = Chain.find(local, MODEL)
    assert (versions_of(chain), chain.version, chain.manifest.watermark_ms) == ([1, 2, 5, 9], 9, 9)
    assert versions_of(Chain.find(local, MODEL, 5)) == [1, 2, 5]
    assert chain.superseded == ()


def test_a_model_without_versions_is_named(store: Store) -> None:
    assert "no committed version of model 'ctr'" in refused(store, "missing").message
    Trainer(store).story([1])
    assert "version 7 does not exist; the newest is 1" in refused(store, "missing", 7).message


def test_the_newest_base_shortens_the_chain(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1, 2])
    third = trainer.story([3])[0]
    base = trainer.base(third)
    fourth = trainer.story([4])[0]
    assert base.ref == third.ref
    assert fourth.manifest.parent == third.ref
    chain = Chain.find(local, MODEL)
    assert versions_of(chain) == [3, 4]
    assert chain.links[0].folder == base.folder
    assert versions_of(Chain.find(local, MODEL, 2)) == [1, 2]
    node, again = serving("float32"), TableSet(OPTIONS)
    load(chain, node)
    assert rows_of(node, 4) == rows_of(trainer.tables, 4)
    load(chain, again, training=True)
    assert everything(again, 4) == everything(trainer.tables, 4)


def test_a_node_goes_on_by_deltas_past_a_newer_base(local: Store) -> None:
    trainer, node = Trainer(local), serving("float32")
    trainer.story([1, 2])
    loaded = load(Chain.find(local, MODEL), node)
    trainer.base(trainer.story([3])[0])
    trainer.story([4])
    chain = Chain.find(local, MODEL, since=loaded.ref)
    assert versions_of(chain) == [3, 4]
    load(chain, node)
    assert rows_of(node, 4) == rows_of(trainer.tables, 4)


def test_a_node_that_began_with_a_base_of_compaction_goes_on_by_deltas(local: Store) -> None:
    trainer, node = Trainer(local), serving("float32")
    trainer.base(trainer.story([1, 2])[1])
    loaded = load(Chain.find(local, MODEL), node)
    trainer.story([3])
    assert versions_of(Chain.find(local, MODEL, since=loaded.ref)) == [3]


def test_a_node_whose_deltas_were_swept_is_told_so(local: Store) -> None:
    trainer = Trainer(local)
    first, _ = trainer.story([1, 2])
    trainer.base(trainer.story([3])[0])
    local.remove("ctr/deltas/000000000003-00000001/manifest.json")
    trainer.story([4])
    assert versions_of(Chain.find(local, MODEL)) == [3, 4]
    assert "its delta is needed" in refused(local, "gap", since=first.ref).message


def test_a_slow_older_run_is_never_chosen_and_is_named(local: Store) -> None:
    old = Trainer(local)
    _, second = old.story([1, 2])
    new = Trainer(local, run=2, last=second)
    third = empty(new, 3, second)
    late = empty(old, 4, second)
    later = empty(old, 5, late)
    chain = Chain.find(local, MODEL)
    assert (versions_of(chain), chain.superseded) == ([1, 2, 3], (late.folder, later.folder))
    assert chain.head.folder == third.folder
    assert "run 1 wrote it after a newer run had taken over" in refused(local, "older_run", 4).message
    assert versions_of(Chain.find(local, MODEL, 2)) == [1, 2]
    fourth = empty(new, 4, third)
    assert Chain.find(local, MODEL, 4).head.folder == fourth.folder


def test_a_version_an_older_run_committed_before_a_newer_took_over_from_another_is_not_of_the_history(
    local: Store,
) -> None:
    first = Trainer(local).story([1])[0]
    between = empty(Trainer(local, run=2, last=first), 2, first)
    empty(Trainer(local, run=3, last=first), 3, first)
    chain = Chain.find(local, MODEL)
    assert (versions_of(chain), chain.superseded) == ([1, 3], (between.folder,))
    refused(local, "older_run", 2)


def test_a_damaged_manifest_of_an_older_run_keeps_nobody_from_a_newer_base(local: Store) -> None:
    first, second = Trainer(local).story([1, 2])
    new = Trainer(local, run=2, last=second)
    third = empty(new, 3, second)
    empty(new, 3, third, kind="base", stands_for=third.ref, parent=second.ref)
    fourth = empty(new, 4, third)
    manifest = Path(local.url.removeprefix("file://")) / first.folder / "manifest.json"
    manifest.chmod(0o644)
    manifest.write_bytes(manifest.read_bytes()[1:])
    chain = Chain.find(local, MODEL)
    assert (versions_of(chain), chain.head.folder, chain.superseded) == ([3, 4], fourth.folder, ())
    assert refused(local, "corrupted", 2).path == f"{first.folder}/manifest.json"


def test_an_older_base_is_of_the_history_when_what_followed_it_is_swept(local: Store) -> None:
    first = Trainer(local).story([1])[0]
    trainer = Trainer(local, run=2, last=first)
    second = empty(trainer, 2, first)
    third = empty(Trainer(local, run=3, last=second), 3, second)
    empty(Trainer(local, run=3, last=third), 3, third, kind="base", stands_for=third.ref, parent=second.ref)
    local.remove(f"{second.folder}/manifest.json")
    assert versions_of(Chain.find(local, MODEL)) == [3]
    assert versions_of(Chain.find(local, MODEL, 1)) == [1]


def test_a_run_never_falls_along_a_chain(local: Store) -> None:
    newer = Trainer(local, run=2).story([1])[0]
    with pytest.raises(VersionDefect, match="run 1 follows run 2") as found:
        empty(Trainer(local, run=1, last=newer), 2, newer)
    assert found.value.defect == "older_run"


def test_a_version_follows_only_an_older_one(local: Store) -> None:
    trainer = Trainer(local)
    _, second = trainer.story([1, 2])
    with pytest.raises(VersionDefect, match="version 2 follows version 2") as found:
        empty(trainer, 2, second)
    assert found.value.defect == "reordered"


def test_two_versions_of_one_run_after_the_same_one_are_refused(local: Store) -> None:
    trainer = Trainer(local)
    first = trainer.story([1])[0]
    empty(trainer, 2, first)
    empty(trainer, 3, first)
    assert "follows version 1, as does" in refused(local, "duplicate").message


def test_a_missing_parent_is_a_gap(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1, 2, 3])
    local.remove("ctr/deltas/000000000002-00000001/manifest.json")
    assert "follows version 2 of run 1, which is missing" in refused(local, "gap").message
    assert "its manifest is missing" in refused(local, "uncommitted", 2).message


def test_a_parent_of_another_run_is_foreign(local: Store) -> None:
    trainer = Trainer(local)
    first, second = trainer.story([1, 2])
    empty(Trainer(local, run=2), 3, second, parent=msgspec.structs.replace(second.ref, run=2))
    assert "follows version 2 of run 2, but the store has one of run 1" in refused(local, "foreign").message
    assert first.ref.version == 1


def test_a_version_tied_to_another_history_is_foreign(local: Store) -> None:
    trainer = Trainer(local)
    _, second = trainer.story([1, 2])
    empty(trainer, 3, second, parent=msgspec.structs.replace(second.ref, sha256="0" * 64))
    assert "its sha256 is" in refused(local, "foreign").message


def test_what_is_loaded_must_be_of_the_same_history(local: Store) -> None:
    trainer = Trainer(local)
    _, second = trainer.story([1, 2])
    trainer.story([3])
    other = VersionRef(version=2, run=1, sha256="0" * 64)
    assert "but the loaded one has 0000" in refused(local, "foreign", since=other).message
    assert "not 9 of run 1" in refused(local, "foreign", since=VersionRef(version=9, run=1, sha256="0" * 64)).message
    assert versions_of(Chain.find(local, MODEL, since=second.ref)) == [3]


@pytest.mark.parametrize("field", ["fingerprint", "tables"])
def test_features_and_tables_never_change_along_a_chain(local: Store, field: str) -> None:
    trainer = Trainer(local)
    first = trainer.story([1])[0]
    tables = [msgspec.structs.replace(first.manifest.tables[0], seed=8), first.manifest.tables[1]]
    empty(trainer, 2, first, **{field: "other" if field == "fingerprint" else tuple(tables)})
    assert f"its {field} are" in refused(local, "incompatible").message


def test_labels_never_change_along_a_chain_and_a_version_of_before_has_those_after_it(local: Store) -> None:
    trainer = Trainer(local)
    first = trainer.story([1])[0]
    labels = ("click", "like")
    assert first.manifest.labels is None
    trainer.fingerprint = model_fingerprint("features", labels)
    second = empty(trainer, 2, first, labels=labels)
    assert Chain.find(local, MODEL).manifest.labels == labels
    empty(trainer, 3, second, labels=labels[::-1], fingerprint=model_fingerprint("features", labels[::-1]))
    assert (
        "its labels are ('like', 'click'), but those of version 2 are ('click', 'like')"
        in refused(local, "incompatible").message
    )


def test_a_version_of_before_is_followed_by_the_same_features_alone(local: Store) -> None:
    trainer = Trainer(local)
    first = trainer.story([1])[0]
    empty(trainer, 2, first, labels=("click",), fingerprint=model_fingerprint("other", ("click",)))
    assert "its fingerprint are" in refused(local, "incompatible").message


def test_a_folder_without_a_manifest_is_no_version(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1, 2])
    writer = VersionWriter(local, trainer.head(3))
    writer.add_rows([])
    assert Chain.find(local, MODEL).version == 2
    assert "its manifest is missing" in refused(local, "uncommitted", 3).message


def test_other_names_among_versions_are_not_looked_at(local: Store) -> None:
    Trainer(local).story([1])
    local.create("ctr/deltas/notes.txt", b"")
    local.create("ctr/deltas/000000000009-1/manifest.json", b"")
    assert Chain.find(local, MODEL).version == 1


def test_a_version_is_committed_once_and_by_one(local: Store) -> None:
    trainer = Trainer(local)
    first = trainer.story([1])[0]
    head = trainer.head(2, parent=first.ref, kind="delta")
    writers = [VersionWriter(local, head) for _ in range(2)]
    for writer in writers:
        writer.add_rows([])
    committed = writers[0].finish(Cut(), clock=ManualClock())
    assert writers[0].finish(Cut(), clock=ManualClock()) == committed
    with pytest.raises(FileTaken):
        writers[1].finish(Cut(metrics={"auc": 1.0}), clock=ManualClock())


def test_a_listing_taken_while_others_sweep_is_taken_again(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(local)
    trainer.story([1, 2])
    listed, entries = [], local.entries

    def early(folder: str) -> list[Entry]:
        listed.append(folder)
        return entries(folder) if len(listed) > 2 else [Entry("000000000002-00000001", True)][: len(listed) % 2]

    monkeypatch.setattr(local, "entries", early)
    assert versions_of(Chain.find(local, MODEL)) == [1, 2]


def test_a_chain_of_too_many_deltas_is_refused(local: Store) -> None:
    Trainer(local).story([1, 2, 3])
    local.loading = LoadSettings(deltas_max=1)
    with pytest.raises(Oversize, match="more than 1 deltas"):
        Chain.find(local, MODEL)
    local.loading = LoadSettings(deltas_max=2)
    assert versions_of(Chain.find(local, MODEL)) == [1, 2, 3]


def test_a_revert_is_a_delta_like_any_other(local: Store) -> None:
    trainer = Trainer(local)
    first = trainer.story([1])[0]
    empty(trainer, 2, first, kind="revert", content_of=first.ref)
    assert versions_of(Chain.find(local, MODEL)) == [1, 2]


@pytest.mark.parametrize("model", ["", "CTR", "../x", "a/b", "a" * 70])
def test_what_is_no_name_of_a_model_is_refused(local: Store, model: str) -> None:
    with pytest.raises(UsageError, match="is not the name of a model"):
        Chain.find(local, model)


def test_a_chain_can_be_found_at_any_moment_of_another_writers_work(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1])
    writing = threading.Thread(target=trainer.story, args=(range(2, 12),))
    node, loaded, is_done = serving("float32"), None, False
    writing.start()
    while not is_done:
        is_done = not writing.is_alive()
        loaded = load(Chain.find(local, MODEL, since=None if loaded is None else loaded.ref), node)
    writing.join()
    assert rows_of(node, 11) == rows_of(trainer.tables, 11)


def test_a_version_whose_files_or_parent_are_elsewhere_is_not_committed(local: Store) -> None:
    trainer = Trainer(local)
    first, second = trainer.story([1, 2])
    there = VersionWriter(open_store("memory://elsewhere"), trainer.head(3, parent=second.ref, kind="delta"))
    entries = there.add_rows([])
    with pytest.raises(VersionDefect) as found:
        VersionWriter(local, there.head).finish(Cut(), entries)
    assert found.value.defect == "missing_file"
    absent = trainer.head(3, parent=msgspec.structs.replace(second.ref, run=9), run=9, kind="delta")
    writer = VersionWriter(local, absent)
    writer.add_rows([])
    with pytest.raises(VersionDefect) as found:
        writer.finish(Cut())
    assert found.value.defect == "gap"
    assert versions_of(Chain.find(local, MODEL)) == [first.manifest.version, second.manifest.version]
