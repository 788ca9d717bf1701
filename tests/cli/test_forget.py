"""`streamlearn forget`: what it asks for, what it waits for, and what it says of all else that holds a person."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamlearn.apps import load_app
from streamlearn.features.keys import keys_of
from streamlearn.online import StateGroup, open_state_store
from streamlearn.online.candidate_lists import list_groups
from streamlearn.online.state_store import StatePlace
from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.table.derivation import with_derived
from streamlearn.topics import TopicSettings, create_topic
from streamlearn.versions import Known, Node, VersionRef
from streamlearn.versions.pointer.deletion import OBEYED, Deletion, Deletions
from tests.cli.place import Place, Verb, refused
from tests.versions.history import MODEL

APP = """
from streamlearn.apps import App
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot

app = App(
    "MODEL",
    FeatureSpec((Slot("user_id", "user"), Slot("account", "user", value="str"), Slot("video", "item")), "video"),
    (LabelGroup("fast", 10, 60),),
    (Label("click", "click", "fast"),),
)
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP.replace("MODEL", MODEL))
    return tmp_path


def _keys_of(app: Path) -> tuple[int, int]:
    features = load_app(app).app.features
    return int(keys_of(features.slot("user_id"), [42])[0]), int(keys_of(features.slot("account"), ["anna"])[0])


def carry_out(place: Place, version: int) -> None:
    """What training does: cut a version that says so."""
    place.trainer.metrics = {OBEYED: float(Deletions(place.store, MODEL).all()[-1].seq)}
    place.cut(version)


def test_a_deletion_is_asked_for_by_key_and_ends_with_3_until_it_is_served(
    place: Place, app: Path, ended: Verb
) -> None:
    first = ended("forget", app, "--user", 42, "--slot", "account=anna", "--wait", 0, "--reason", "art. 17")
    refused(first, 3, "deletion 1 is asked for, but not done: no version is without the rows yet", "help: ")
    assert "anna" not in first.out
    (deletion,) = Deletions(place.store, MODEL).all()
    features = load_app(app).app.features
    keys = (keys_of(features.slot("user_id"), [42]), keys_of(features.slot("account"), ["anna"]))
    expected = tuple(f"{key:016x}" for (key,) in keys)
    assert (deletion.keys, deletion.reason) == ({"main": expected}, "art. 17")
    assert deletion.until_ms == pytest.approx(deletion.wall_ms + 60_000, abs=30_000)
    assert "deletion 1 of" in ended("versions", MODEL).out
    (waiting,) = json.loads(ended("versions", MODEL, "--json").out)["deletions"]
    assert (waiting["seq"], waiting["reason"]) == (1, "art. 17")


def test_the_rows_of_calibrations_by_the_slot_go_too(place: Place, app: Path, ended: Verb) -> None:
    text = (app / "app.py").read_text().replace("Slot\n", "Slot, Calibration\n", 1)
    derived = 'derived=(Calibration("click", by="user_id"), Calibration("click", by="account")))'
    (app / "app.py").write_text(text.replace('"video"),\n', f'"video", {derived},\n'))
    assert ended("forget", app, "--user", 42, "--wait", 0).status == 3
    (deletion,) = Deletions(place.store, MODEL).all()
    pack = load_app(app).app.features.pack
    keys = SlotColumns(keys_of(load_app(app).app.features.slot("user_id"), [42]))
    account = SlotColumns(keys_of(load_app(app).app.features.slot("account"), ["anna"]))
    none = FeatureColumns({}, {})
    made, _ = with_derived(pack, FeatureColumns({"user_id": keys, "account": account}, {}), none, np.zeros(0, np.int32))
    expected = {"main": (f"{keys.keys[0]:016x}",), "calibration": (f"{made.slots['click_by_user_id'].keys[0]:016x}",)}
    assert deletion.keys == expected


def test_the_rows_of_the_towers_go_too(place: Place, app: Path, ended: Verb) -> None:
    text = (app / "app.py").read_text().replace("Slot\n", "Slot, Retrieval\n", 1)
    retrieval = '    retrieval=Retrieval("click", user=("user_id",), item=("video",)),\n)\n'
    (app / "app.py").write_text(text.removesuffix(")\n") + retrieval)
    assert ended("forget", app, "--user", 42, "--slot", "account=anna", "--wait", 0).status == 3
    (deletion,) = Deletions(place.store, MODEL).all()
    user, account = (f"{key:016x}" for key in _keys_of(app))
    assert deletion.keys == {"main": (user, account), "towers": (user,)}


def test_it_waits_until_a_version_without_the_rows_is_served_by_all_nodes(place: Place, app: Path, ended: Verb) -> None:
    assert ended("forget", app, "--user", 42, "--wait", 0).status == 3
    carry_out(place, 6)
    refused(ended("forget", app, "--user", 42, "--wait", 0), 3, "deletion 2", "no version is without the rows yet")
    carry_out(place, 7)
    late = ended("forget", app, "--user", 42, "--wait", 0)
    refused(late, 3, "deletion 3")
    carry_out(place, 8)
    place.follow(8)
    place.registry.beat(Node(boot_id="a", name="node-7", state="ready", active=5, seq=place.pointer.seq - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deletions, "ask", lambda self, deletion, known: Deletions(place.store, MODEL).all()[-1])
        refused(ended("forget", app, "--user", 42, "--wait", 0), 3, "still at a version with the rows: node-7")
        place.registry.beat(Node(boot_id="a", name="node-7", state="ready", active=8, seq=place.pointer.seq))
        done = ended("forget", app, "--user", 42)
        assert done.status == 0, done
        assert "deletion 3 takes the rows of 1 key out of ctr: no node uses them any more" in done.out
        assert ended("rollback", MODEL, "--to", 5, "--wait", 0).err.startswith(
            "version 5 still has rows that 3 deletions"
        )
        refused(ended("forget", app, "--user", 42, "--wait", 0), 3, "version 5, which has the rows, is held")


def test_a_dry_run_says_all_and_changes_nothing(place: Place, app: Path, ended: Verb) -> None:
    create_topic(f"file://{app}/.streamlearn/topics/ctr.samples", TopicSettings(retention_ms=7 * 86_400_000)).close()
    (app / ".streamlearn" / "kept").mkdir()
    (app / ".streamlearn" / "kept" / "step-1.avro").touch()
    done = ended("forget", app, "--user", 42, "--dry-run", "--json").json
    assert (done["seq"], [row["slot"] for row in done["keys"]]) == (None, ["user_id"])
    goes = {row["what"]: row["goes"] for row in done["remains"]}
    assert goes["samples"].startswith("after 7 d: about ")
    assert goes["impressions"] == "there is none"
    assert goes["quarantine"] == "by hand (1 file)"
    assert "60 newer versions" in goes["older versions"]
    said = ended("forget", app, "--user", 42, "--dry-run").out
    assert "nothing was changed" in said
    assert "by hand: exported versions" in said
    assert Deletions(place.store, MODEL).all() == ()


def test_what_names_no_person_is_refused(place: Place, app: Path, ended: Verb) -> None:
    refused(ended("forget", app), 2, "no person was given", "--user ID")
    refused(ended("forget", app, "--user", "anna"), 2, "'user_id' is not a whole number")
    refused(ended("forget", app, "--slot", "anna"), 2, "--slot needs the form NAME=ID", "user_id, account, video")
    refused(ended("forget", app, "--slot", "name=anna"), 2, "no slot is named 'name'")
    refused(ended("forget", MODEL, "--user", 1), 2, "is not an application")
    other = app / "other"
    other.mkdir()
    (other / "app.py").write_text(APP.replace("MODEL", MODEL).replace('"user_id"', '"person"'))
    refused(ended("forget", other, "--user", 1), 2, "0 slots are named user_id or user", "slots are person, account")


def test_a_deletion_is_kept_while_a_rewind_or_an_old_sample_could_bring_the_rows_back(place: Place) -> None:
    deletions = Deletions(place.store, MODEL)
    for until_ms in (100, 200, 300):
        deletions.ask(Deletion(keys={"main": ("0" * 16,)}, until_ms=until_ms))

    def known(obeyed: float, watermark_ms: int | None) -> Known:
        ref = VersionRef(version=9, run=1, sha256="0" * 64)
        return Known(ref=ref, kind="delta", metrics={OBEYED: obeyed}, watermark_ms=watermark_ms)

    for entry in (known(0, 400), known(3, 50), known(3, None)):
        deletions.drop([known(3, 400), entry])
        assert len(deletions.all()) == 3
    deletions.drop([])
    assert len(deletions.all()) == 3
    deletions.drop([known(2, 250)])
    assert [deletion.seq for deletion in deletions.all()] == [3]
    deletions.drop([known(3, 400)])
    assert deletions.ask(Deletion(keys={}, until_ms=1), [known(3, 400)]).seq == 4


@pytest.mark.parametrize("side", ["user", "item"])
def test_the_states_of_computed_features_go_too_and_so_does_the_list_of_candidates(
    place: Place, app: Path, ended: Verb, side: str
) -> None:
    text = (app / "app.py").read_text().replace("Slot\n", "Retrieval, Slot, Since\n", 1)
    computed = f'Slot("pause", "{side}", default=-1, computed=Since("click")), Slot("video", "item")'
    text = text.replace('Slot("video", "item")', computed)
    (app / "app.py").write_text(
        text.replace('"fast"),),\n', '"fast"),),\n    retrieval=Retrieval("click", ("user_id",), ("video",)),\n')
    )
    (app / "app.toml").write_text('[retrieval]\nnearline = "found"\n')
    folder = load_app(app)
    spec = folder.app.features
    (entity,) = spec.entities
    lists = [replace(group, partitions=3) for group in list_groups(folder)]
    groups = [StateGroup.of(MODEL, entity, 3), *lists]
    keys = [int(key) for key in keys_of(spec.slot("user_id"), [42, 43])]
    places = [StatePlace(group, key) for group in groups for key in keys]
    with open_state_store(folder) as store:
        for group in groups:
            store.switch(group)
        for one in places:
            begun = store.claim(one.group, one.partition)
            moved = replace(begun, topic_id="topic", position=1)
            store.write(one.group, one.partition, (begun, moved), {one.key: b"state"}, 60_000)
        assert ended("forget", app, "--user", 42, "--dry-run").status == 0
        assert store.read(places) == [b"state"] * 6
        assert ended("forget", app, "--user", 42, "--wait", 0).status == 3
        # Where columns of items are computed, the states are those of items.
        of_entity = [None if side == "user" else b"state", b"state"]
        assert store.read(places) == [*of_entity, *[None, b"state"] * 2]
