"""Verbs on versions: what each does, what it refuses and with which exit status, and what programs are given."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from streamlearn.apps import load_app
from streamlearn.cli.output.units import runs_text
from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.testing import ManualClock, wait_until
from streamlearn.times import time_text
from streamlearn.versions import (
    History,
    Node,
    Pointer,
    PointerLog,
    Replica,
    Request,
    Requests,
    Verdict,
    write_revert,
    write_verdict,
)
from streamlearn.versions.pointer.moves import raise_floor
from streamlearn.versions.pointer.registry import Ack
from tests.cli.place import DEADLINE_S, Ended, Place, Verb, refused
from tests.versions.history import MODEL


@pytest.fixture
def verb(ended: Verb) -> Verb:
    return ended


def test_a_rollback_is_followed_by_all_nodes_and_each_ones_time_is_printed(
    place: Place, nodes: list[Replica], verb: Verb
) -> None:
    ended = verb("rollback", MODEL, "--to", 4, "--reason", "bad clicks", "--wait", DEADLINE_S)
    assert ended.status == 0, ended
    assert f"{MODEL} is rolled back to version 4 and held there; tainted: 5" in ended.out
    for name in ("node-1", "node-2"):
        (line,) = [line for line in ended.out.splitlines() if line.startswith(name)]
        assert "acted" in line
        assert line.split()[-1] == "4"
    assert (place.pointer.held, place.pointer.taints, place.pointer.reason) == (True, (5,), "bad clicks")
    for one in nodes:
        with one.reading() as read:
            assert read.version == 4
    assert place.registry.notes(1)[0].what == "rollback"


def test_a_removal_of_old_versions_does_not_hide_when_the_pointer_was_moved_and_why(place: Place, verb: Verb) -> None:
    assert verb("rollback", MODEL, "--to", 4, "--reason", "bad clicks", "--wait", 0).status == 0
    moved = place.pointer
    place.registry.beat(Node(name="node-1", boot_id="1", state="ready", active=4, seq=moved.seq))
    log = PointerLog(place.store, MODEL, clock=ManualClock(moved.wall_ms + 3_600_000))
    log.move(lambda now: raise_floor(now, place.known, 2), by=moved.by, reason=moved.reason)
    assert place.pointer.wall_ms > moved.wall_ms
    said = verb("versions", MODEL)
    assert f"at {time_text(moved.wall_ms)} UTC: bad clicks" in said.out
    assert verb("versions", MODEL, "--json").json["pointer"]["wall_ms"] == moved.wall_ms


def test_a_node_without_heartbeat_is_silent_and_a_rollback_ends_with_3(
    place: Place, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.registry.beat(Node(boot_id="a", name="node-7", state="ready", active=5, seq=place.pointer.seq))
    now_ms = SYSTEM_CLOCK.wall_ms()
    monkeypatch.setattr(type(SYSTEM_CLOCK), "wall_ms", lambda _: now_ms + 20_000)
    assert re.search(r"node-7 +silent +5 ", verb("versions", MODEL).out)
    assert [one["name"] for one in verb("versions", MODEL, "--json").json["silent"]] == ["node-7"]
    ended = verb("rollback", MODEL, "--to", 4)
    assert re.search(r"node-7 +silent", ended.out)
    refused(ended, 3, "1 of 1 node did not confirm in time: node-7")


def test_a_rollback_says_programs_who_acted_and_how_long_it_took(
    place: Place, nodes: list[Replica], verb: Verb
) -> None:
    said = verb("rollback", MODEL, "--steps", 2, "--json", "--wait", DEADLINE_S).json
    assert (said["active"], said["held"], said["taints"], said["silent"], said["registry"]) == (2, True, [4], [], "")
    assert sorted(one["node"] for one in said["acted"]) == ["node-1", "node-2"]
    assert all(one["version"] == 2 and one["own_ms"] >= 0 for one in said["acted"])
    assert all(one["ms"] >= 0 for one in said["acted"])


def test_a_node_that_does_not_act_is_named_and_the_exit_status_is_3(
    place: Place, nodes: list[Replica], verb: Verb
) -> None:
    def moved(*words: object) -> Ended:
        """Move until both nodes that live follow within a second, for which a loaded machine may need some moves."""

        def once() -> Ended | None:
            place.registry.beat(Node(boot_id="dead", name="node-dead", state="ready", active=5))
            ended = verb(*words, "--wait", 1)
            return None if "2 of 3 nodes" in ended.err or "3 of 3 nodes" in ended.err else ended

        ended = wait_until(once, "both nodes that live to follow", DEADLINE_S)
        assert ended is not None
        return ended

    ended = moved("rollback", MODEL, "--to", 4)
    refused(ended, 3, "1 of 3 nodes did not confirm in time: node-dead", "help: ")
    assert "node-dead  silent" in ended.out
    ended = verb("release", MODEL, "--wait", 0.1, "--json")  # version 5 is tainted
    assert ended.status == 1
    ended = moved("promote", MODEL, 5, "--accept", "--json")
    assert ended.status == 3
    assert [one["node"] for one in ended.json["silent"]] == ["node-dead"]
    assert len(ended.json["acted"]) == 2


def test_a_move_that_no_node_is_known_to_follow_says_so_and_ends_with_3(place: Place, verb: Verb) -> None:
    said = "the pointer moved, but nodes could not be asked whether they follow: the registry knows of no nodes"
    ended = verb("rollback", MODEL, "--to", 4, "--wait", 0.1)
    assert f"{MODEL} is rolled back to version 4 and held there" in ended.out
    refused(ended, 3, said, "--wait 0")
    ended = verb("promote", MODEL, 5, "--accept", "--wait", 0.1, "--json")
    refused(ended, 3, said)
    assert ended.json["registry"] == "the registry knows of no nodes"
    refused(verb("release", MODEL, "--wait", 0.1), 3, said)


def test_an_acknowledgement_counts_before_the_next_heartbeat(place: Place, verb: Verb) -> None:
    place.registry.beat(Node(boot_id="a", name="node-a", state="ready", seq=place.pointer.seq, active=5))
    assert verb("rollback", MODEL, "--to", 4, "--wait", 0).status == 0
    for seq, shown in ((place.pointer.seq - 1, "5"), (place.pointer.seq, "4")):
        place.registry.ack(Ack(boot_id="a", name="node-a", seq=seq, version=4, took_ms=1.0, wall_ms=1))
        (line,) = [line.split() for line in verb("versions", MODEL).out.splitlines() if line.startswith("node-a")]
        assert line[:3] == ["node-a", "ready", shown]


def test_a_rollback_to_before_a_time_takes_the_newest_version_written_before(place: Place, verb: Verb) -> None:
    written = {one.version: one.written_wall_ms for one in place.known}
    ended = verb("rollback", MODEL, "--before", written[5] + 1, "--wait", 0, "--json")
    assert ended.json["active"] == 4
    ended = verb("rollback", MODEL, "--before", "1970-01-01T00:00:00", "--wait", 0)
    refused(ended, 1, "no clean version before 1970-01-01 00:00:00+00:00 (the active one is", "streamlearn versions")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 2, "give exactly one of --to, --steps and --before"),
        (("--to", 4, "--steps", 1), 2, "for example --to VERSION, --steps N or --before TIME"),
        (("--to", 3), 1, "version 3 cannot be served: it is not a version of the history"),
        (("--to", 99), 1, "complete and clean are 1, 2, 4, 5"),
        (("--steps", 9), 1, "no clean version 9 steps back (the active one is 5): 3 are older"),
        (("--before", "noon"), 2, "'noon' is not a time"),
        (("--to", "x"), 2, "x"),
        (("--steps", 0), 2, "0"),
    ],
)
def test_a_rollback_that_cannot_be_is_refused_and_moves_nothing(
    place: Place, verb: Verb, words: tuple[object, ...], status: int, said: str
) -> None:
    before = place.pointer
    refused(verb("rollback", MODEL, *words), status, said)
    assert place.pointer == before


def test_a_model_that_is_not_there_is_named(place: Place, verb: Verb) -> None:
    for words in (("versions", "nobody"), ("rollback", "nobody", "--steps", 1), ("show", "nobody", 1)):
        refused(verb(*words), 2, "has no version of 'nobody'", "--store or STREAMLEARN_STORE")
    refused(verb("versions"), 2, "no model was given")


def test_the_folder_of_an_application_stands_for_its_model(
    place: Place, small: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = load_app(small)
    monkeypatch.delenv("STREAMLEARN_STORE")
    monkeypatch.delenv("STREAMLEARN_REGISTRY")
    refused(verb("versions", small), 2, f"has no version of {app.app.name!r}", ".streamlearn/versions")
    refused(verb("show", f"{small}/", 7), 2, f"has no version of {app.app.name!r}")
    refused(verb("versions", small / "nothing"), 2, "is not the folder of an application", "give the folder")
    # With a store, it is the name of a model.
    refused(verb("versions", small, "--store", place.store.url), 2, "model")


def test_a_release_follows_the_newest_clean_version_and_is_refused_when_there_is_none(
    place: Place, nodes: list[Replica], verb: Verb
) -> None:
    assert verb("rollback", MODEL, "--to", 4, "--wait", DEADLINE_S).status == 0
    refused(verb("release", MODEL), 1, "version 5 is tainted", f"streamlearn rewind {MODEL} --to", "--accept")
    put_back(place, 6)
    ended = verb("release", MODEL, "--wait", DEADLINE_S)
    assert ended.status == 0, ended
    assert f"{MODEL} follows new versions again, from version 6" in ended.out
    assert not place.pointer.held
    move = place.pointer
    assert verb("release", MODEL, "--json").json["active"] == 6
    assert place.pointer == move  # it followed already: nothing moved


def test_a_second_rollback_leaves_what_came_after_a_rewind_and_no_verb_serves_it_again(
    place: Place, verb: Verb
) -> None:
    assert verb("rollback", MODEL, "--to", 4, "--wait", 0).status == 0
    put_back(place, 6)
    assert verb("release", MODEL, "--wait", 0, "--json").json["active"] == 6
    assert "held there; tainted: 5-6 " in verb("rollback", MODEL, "--to", 4, "--wait", 0).out
    refused(verb("release", MODEL), 1, "versions 5, 6 are tainted", f"streamlearn rewind {MODEL} --to")
    refused(verb("rewind", MODEL, "--to", 6), 1, "version 6 of 'ctr' is tainted", "clean versions are 1, 2, 4")
    refused(verb("promote", MODEL, 6), 1, "version 6 cannot be served: it is tainted", "--accept")
    put_back(place, 7)
    assert verb("release", MODEL, "--wait", 0, "--json").json["active"] == 7


def put_back(place: Place, version: int) -> None:
    """Training goes back to version 4 as another version, which passes."""
    write_revert(place.store, MODEL, to=4, run=1, version=version)
    one = place.known[-1]
    write_verdict(place.store, History(place.store, MODEL).folder(one.ref), Verdict(version=one.ref, outcome="passed"))


def test_a_tainted_version_is_promoted_when_it_is_accepted_alone(place: Place, verb: Verb) -> None:
    assert verb("rollback", MODEL, "--to", 4, "--wait", 0).status == 0
    refused(verb("promote", MODEL, 5), 1, "version 5 cannot be served: it is tainted", "promote ctr 5 --accept")
    ended = verb("promote", MODEL, 5, "--accept", "--wait", 0)
    assert ended.status == 0, ended
    assert f"{MODEL} serves version 5; the hold stays" in ended.out
    assert (place.pointer.accepted, place.pointer.held) == ((5,), True)
    refused(verb("promote", MODEL), 2, "VERSION is missing")
    refused(verb("promote", MODEL, 9), 1, "version 9 cannot be served")


def test_a_canary_is_tried_on_a_share(place: Place, nodes: list[Replica], verb: Verb) -> None:
    place.cut(6)
    ended = verb("promote", MODEL, 6, "--canary", 0.25, "--wait", DEADLINE_S)
    assert ended.status == 0, ended
    assert f"{MODEL}: version 6 answers 25.0% of the requests" in ended.out
    assert place.pointer.canary is not None
    for one in nodes:
        with one.reading(6) as read:
            assert read.version == 6
    wait_until(lambda: all(6 in one.staged for one in place.registry.nodes()), "nodes to say so", DEADLINE_S)
    pointer = verb("versions", MODEL, "--json").json["pointer"]
    assert (pointer["canary"], pointer["share"], pointer["canary_nodes"]) == (6, 0.25, ["node-1", "node-2"])
    assert "canary: version 6 answers 25.0% of the requests, on node-1, node-2" in verb("versions", MODEL).out
    refused(verb("promote", MODEL, 6, "--canary", 1.5), 2, "invalid share 1.5", "above 0 and below 1")
    refused(verb("promote", MODEL, 5, "--canary", 0.1), 1, "it is the active one")
    said = verb("rollback", MODEL, "--to", 5, "--json").json
    assert (said["canary"], said["taints"], said["active"]) == (None, [6], 5)


def test_a_version_is_tried_in_shadow_and_ended_without_a_taint(place: Place, verb: Verb) -> None:
    place.cut(6)
    refused(verb("promote", MODEL, 6, "--shadow", 0.5, "--canary", 0.5), 2, "only one version can be tried at a time")
    ended = verb("promote", MODEL, 6, "--shadow", 1, "--wait", 0)
    assert f"{MODEL}: version 6 scores, in shadow, 100.0% of the requests" in ended.out
    pointer = verb("versions", MODEL, "--json").json["pointer"]
    assert (pointer["canary"], pointer["share"], pointer["shadow"]) == (6, 1.0, True)
    assert "shadow: version 6 scores 100.0% of the requests" in verb("versions", MODEL).out
    said = verb("promote", MODEL, 5, "--wait", 0, "--json").json
    assert (said["canary"], said["taints"], said["active"]) == (None, [], 5)


def test_without_a_registry_it_is_said_that_no_node_is_waited_for(place: Place, verb: Verb) -> None:
    ended = verb("rollback", MODEL, "--to", 4, "--registry", "none")
    assert ended.status == 0
    assert "no registry was given: nodes are not waited for" in ended.err


def test_a_registry_that_is_away_keeps_no_rollback_from_the_store(place: Place, verb: Verb) -> None:
    url = "redis://ada:hush-hush@127.0.0.1:1"
    ended = verb("rollback", MODEL, "--to", 4, "--registry", url)
    refused(ended, 3, "the pointer moved, but nodes could not be asked", "redis://127.0.0.1:1/0")
    assert "hush" not in ended.err + ended.out
    assert place.pointer.held
    ended = verb("versions", MODEL, "--registry", url)
    assert ended.status == 0
    assert "nodes are unknown" in ended.err
    refused(verb("gc", MODEL, "--registry", url), 2, "cannot tell which versions nodes need")
    assert "hush" not in ended.err + ended.out


def test_versions_are_listed_with_what_each_is_and_who_serves_it(
    place: Place, nodes: list[Replica], verb: Verb
) -> None:
    place.cut(6, "rejected")
    place.cut(7)
    ended = verb("versions", MODEL)
    assert ended.status == 0
    rows = {line.split()[0]: line for line in ended.out.splitlines() if line.split()[:1] and line.split()[0].isdigit()}
    assert sorted(rows) == ["1", "2", "4", "5", "6", "7"]
    assert "rejected" in rows["6"]
    assert "tainted by 6" in rows["7"]
    assert "node-1, node-2" in rows["5"]
    said = verb("versions", MODEL, "--limit", 2, "--json").json
    assert [one["version"] for one in said["versions"]] == [6, 7]
    assert (said["pointer"]["active"], said["pointer"]["held"], len(said["nodes"])) == (5, False, 2)


def test_a_version_is_shown_with_its_verdict(place: Place, verb: Verb) -> None:
    ended = verb("show", MODEL, 4)
    assert ended.status == 0, ended
    assert "verdict: passed" in ended.out
    assert place.known[2].ref.sha256 in ended.out
    said = verb("show", MODEL, 4, "--json").json
    assert (said["version"], said["parent"], said["verdict"]["outcome"]) == (4, 2, "passed")
    assert {one["kind"] for one in said["files"]} > {"rows", "dense", "marks"}
    refused(verb("show", MODEL, 3), 2, "does not exist", "the newest are 1, 2, 4, 5")


def test_a_rewind_asks_training_to_go_back_and_to_skip(place: Place, verb: Verb) -> None:
    words = ("--to", 4, "--skip", "2026-11-20T12:20..2026-11-20T12:25", "--skip", "topic-id:3:10..20")
    ended = verb("rewind", MODEL, *words, "--reason", "spam")
    assert ended.status == 0, ended
    assert "request 1: training of" in ended.out
    assert "topic topic-id partition 3 offsets 10..20" in ended.out
    (asked,) = Requests(place.store, MODEL).after(0)
    assert (asked.to.version, asked.reason, len(asked.skips)) == (4, "spam", 2)
    assert verb("rewind", MODEL, "--to", 2, "--json").json["seq"] == 2


def test_versions_say_why_training_did_not_go_back(place: Place, verb: Verb) -> None:
    assert verb("rewind", MODEL, "--to", "4").status == 0
    requests = Requests(place.store, MODEL)
    (asked,) = requests.after(0)
    requests.refuse(asked, "a file is damaged")
    out = verb("versions", MODEL).out
    assert f"could not go back to version 4 (request 1 of {asked.by}) and continues: a file is damaged" in out
    assert "was asked to go back" not in out
    said = verb("versions", MODEL, "--json").json
    assert (said["requests"], said["refused"]["seq"], said["refused"]["to"]) == ([], 1, 4)
    assert said["refused"]["reason"] == "a file is damaged"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 2, "no version was given"),
        (("--to", 3), 2, "does not exist"),
        (("--to", 4, "--skip", "12:20"), 2, "--skip '12:20' is not a valid range"),
        (("--to", 4, "--skip", "2026-11-20T12:25..2026-11-20T12:20"), 2, "to 2026-11-20T12:20:00+00:00"),
        (("--to", 4, "--skip", "topic:3:20..10"), 2, "offsets 20..10 are not a valid range"),
        (("--to", 4, "--skip", "a..b"), 2, "'a' is not a time"),
    ],
)
def test_a_rewind_that_cannot_be_is_refused_and_asks_nothing(
    place: Place, verb: Verb, words: tuple[object, ...], status: int, said: str
) -> None:
    refused(verb("rewind", MODEL, *words), status, said)
    assert Requests(place.store, MODEL).after(0) == []


def test_training_does_not_go_back_to_what_would_be_tainted_again(place: Place, verb: Verb) -> None:
    assert verb("rollback", MODEL, "--to", 2, "--wait", 0).status == 0
    refused(verb("rewind", MODEL, "--to", 4), 1, "version 4 of 'ctr' is tainted", "clean versions are 1, 2")
    assert Requests(place.store, MODEL).after(0) == []
    assert verb("rewind", MODEL, "--to", 2).status == 0


def test_a_base_is_written_once(place: Place, verb: Verb) -> None:
    said = verb("compact", MODEL, "--json").json
    assert (said["version"], said["is_new"]) == (5, True)
    assert said["rows"] > 0
    ended = verb("compact", MODEL, "--version", 5)
    assert "version 5 already has a base" in ended.out
    assert "version 4 has a base of" in verb("compact", MODEL, "--version", 4).out
    refused(verb("compact", MODEL, "--version", 3), 1, "does not exist")


GC = (
    "--set", "retention.keep_versions_min=1", "--set", "retention.keep_s=0", "--grace-s", 0,
)  # fmt: skip


def test_gc_says_what_goes_and_removes_it_only_when_told_to(place: Place, verb: Verb) -> None:
    assert verb("compact", MODEL, "--version", 4).status == 0
    before = sorted(path for path in (place.folder / "store").rglob("*"))
    dry = verb("gc", MODEL, *GC)
    assert dry.status == 0, dry
    assert "--yes deletes them" in dry.out
    said = verb("gc", MODEL, *GC, "--json").json
    assert said["floor"] == 4
    assert sorted(path for path in (place.folder / "store").rglob("*")) == before
    done = verb("gc", MODEL, *GC, "--yes", "--json")
    assert done.status == 0, done
    assert done.json["removed_files"] == sum(one["files"] for one in said["goes"])
    assert [one.version for one in place.known] == [4, 5]
    assert place.pointer.floor == 4
    assert verb("verify", MODEL).status == 0
    assert "nothing to delete" in verb("gc", MODEL, *GC, "--yes").out
    refused(verb("rollback", MODEL, "--to", 2), 1, "it is below the floor 4")
    assert verb("rollback", MODEL, "--to", 4, "--wait", 0).status == 0


def test_gc_leaves_what_nodes_answer_with_and_what_training_is_to_go_back_to(place: Place, verb: Verb) -> None:
    for version in (2, 4):
        assert verb("compact", MODEL, "--version", version).status == 0
    assert verb("gc", MODEL, *GC, "--json").json["floor"] == 4
    Requests(place.store, MODEL).ask(Request(to=place.known[1].ref))
    assert verb("gc", MODEL, *GC, "--json").json["floor"] == 2
    place.registry.beat(Node(boot_id="old", name="node-old", state="stale", active=1))
    assert verb("gc", MODEL, *GC, "--json").json["floor"] == 1


def test_gc_wants_to_hear_that_there_are_no_nodes(place: Place, verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMLEARN_REGISTRY")
    refused(verb("gc", MODEL, *GC), 2, "no registry was given", "--registry none if you have no nodes")
    assert verb("gc", MODEL, *GC, "--registry", "none").status == 0


def test_a_rollback_takes_back_what_is_published_while_it_is_decided(
    place: Place, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = PointerLog.move

    def late(self: PointerLog, *given: Any, **said: Any) -> Pointer:
        if said["by"] != "publisher":
            monkeypatch.setattr(PointerLog, "move", moving)
            place.cut(6)
            place.follow(6)
        return moving(self, *given, **said)

    monkeypatch.setattr(PointerLog, "move", late)
    ended = verb("rollback", MODEL, "--steps", 2, "--wait", 0, "--json")
    assert ended.status == 0, ended
    assert (ended.json["active"], ended.json["taints"]) == (4, [5])
    refused(verb("release", MODEL, "--wait", 0), 1, "versions 5, 6 are tainted")


def test_a_registry_that_calls_a_rejected_version_passed_changes_no_promotion_and_no_release(
    place: Place, verb: Verb
) -> None:
    place.cut(6, "rejected")
    place.cut(7)
    place.registry.put_versions(structs.replace(known, outcome="passed") for known in place.known)
    refused(verb("promote", MODEL, 6, "--wait", 0), 1, "6 cannot be served: it is tainted")
    verb("rollback", MODEL, "--to", 5, "--wait", 0)
    refused(verb("release", MODEL, "--wait", 0), 1, "6, 7")
    assert place.pointer.active is not None
    assert place.pointer.active.version == 5


def test_a_rollback_goes_to_no_rejected_version_that_the_registry_calls_passed(place: Place, verb: Verb) -> None:
    place.cut(6, "rejected")
    place.cut(7)
    verb("promote", MODEL, 7, "--accept", "--wait", 0)
    place.registry.put_versions(structs.replace(known, outcome="passed") for known in place.known)
    refused(verb("rollback", MODEL, "--to", 6, "--wait", 0), 1, "6 cannot be served: it is tainted")


def test_a_rollback_taints_versions_that_the_registry_leaves_out(place: Place, verb: Verb) -> None:
    known = {entry.version: entry for entry in place.known}
    oldest, *_, last_but_one, _ = sorted(known)
    place.registry.put_versions(known.values())
    place.registry.put_versions([structs.replace(known[last_but_one], parent=known[oldest].ref)])
    rolled = verb("rollback", MODEL, "--to", oldest, "--wait", 0)
    assert rolled.status == 0, rolled.out
    assert f"tainted: {runs_text([version for version in known if version > oldest])} (" in rolled.out
    refused(verb("release", MODEL, "--wait", 0), 1, "no clean version")


def test_the_number_of_an_obeyed_request_stays_taken_though_its_file_was_removed(place: Place, verb: Verb) -> None:
    requests, known = Requests(place.store, MODEL), place.known
    obeyed = (*known[:-1], structs.replace(known[-1], metrics={**known[-1].metrics, "requests_obeyed": 7.0}))
    made = requests.ask(Request(to=known[0].ref), obeyed)
    assert made.seq == 8
    assert requests.waiting(obeyed) == [made]
    assert requests.ask(Request(to=known[0].ref)).seq == 9
