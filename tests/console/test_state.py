"""What the page is told, from what store and registry gave: no server, no store."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.console.snapshot import Gathered
from streamlearn.console.state import may_go_back_to
from streamlearn.errors import MoveRefused
from streamlearn.given_up import GivenUpProcess
from streamlearn.hints import Given
from streamlearn.versions import Pointer, Request
from streamlearn.versions.pointer import moves as decisions
from streamlearn.versions.pointer.moves import Canary
from streamlearn.versions.pointer.registry import missing
from streamlearn.versions.pointer.request import Refusal
from streamlearn.versions.pointer.switch_log import Switch
from tests.console.gathered import NOW_MS, gathered, known_of, moved, node_of, ref, said


def levels(state: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["level"], one["what"]) for one in state["trouble"]]


def test_all_is_well_where_all_nodes_answer_with_what_is_to_be_served() -> None:
    state = said(gathered(moved(3, 10)))
    assert state["headline"] == {"level": "good", "said": "Version 10 is served, by all 2 nodes"}
    assert state["trouble"] == []
    assert [one["version"] for one in state["versions"]] == list(range(1, 11))
    assert state["versions"][-1]["state"] == "active"
    assert state["versions"][-1]["nodes"] == ["a", "b"]
    assert [one["moves_behind"] for one in state["nodes"]] == [0, 0]


def test_a_model_without_versions_is_told_as_one() -> None:
    state = said(gathered(Pointer(), known=(), moves=(), nodes=()))
    assert state["headline"]["said"] == "No version is active yet"
    assert state["may"]["rollback"]["refused"]
    assert levels(state) == [("note", "versions")]


def test_events_that_become_dead_letters_are_trouble() -> None:
    state = said(gathered(moved(3, 10), dead_share=0.4))
    assert levels(state) == [("warn", "ingest")]
    assert state["trouble"][0]["said"] == "40.0% of ingest's recent events became dead letters"


def test_computed_features_are_shown_where_there_are_some() -> None:
    assert said(gathered(moved(3, 10)))["features"] is None
    facts = {"store": "redis://here:6379/0", "error": "", "behind": 3, "newest_ms": NOW_MS}
    state = said(gathered(moved(3, 10), features=facts))
    assert (state["features"], state["trouble"]) == (facts, [])


def learners(**changed: Any) -> dict[str, Any]:
    """Two processes that learn, of three that should."""
    members = [{"name": name, "slices": 7, "slice_s": 0.01, "held": 1} for name in ("leader", "host:1")]
    facts = {"error": "", "help": "", "asked_ms": NOW_MS, "wanted": 3, "short_since_ms": NOW_MS - 16_000}
    return facts | {"members": members} | changed


def test_workers_are_shown_where_a_model_has_some_and_are_trouble_once_they_had_time_to_come_back() -> None:
    assert said(gathered(moved(3, 10)))["workers"] is None
    facts = learners()
    state = said(gathered(moved(3, 10), workers=facts))
    assert state["workers"] == facts
    assert state["headline"]["level"] == "warn"
    assert levels(state) == [("warn", "workers")]
    assert state["trouble"][0]["said"] == "1 of 3 processes that learn is missing"
    assert state["trouble"][0]["since_ms"] == NOW_MS - 16_000
    for well in (learners(short_since_ms=NOW_MS - 14_000), learners(wanted=0, short_since_ms=0)):
        assert said(gathered(moved(3, 10), workers=well))["trouble"] == []


def test_a_trainer_that_does_not_answer_leaves_workers_unknown_with_a_command_that_works() -> None:
    unknown = learners(
        error="the trainer at host:7302 does not answer", help="check that `streamlearn train APP` runs there",
        members=[], asked_ms=0, wanted=0, short_since_ms=0,
    )  # fmt: skip
    state = said(gathered(moved(3, 10), workers=unknown), given=Given(app="shop"))
    assert state["workers"] == unknown | {"help": "check that `streamlearn train shop` runs there"}
    assert state["trouble"] == []


def test_a_process_that_was_given_up_is_trouble() -> None:
    """All was green for minutes otherwise: nodes answer without ingest, and versions become late much later."""
    ingest = GivenUpProcess("ingest", "status 2", "/logs/ingest.log", 1_000, 1)
    state = said(gathered(moved(3, 10), given_up=(ingest,)))
    assert state["headline"]["level"] == "warn"
    assert levels(state) == [("warn", "process")]
    assert state["trouble"][0]["said"] == "`up` gave ingest up (status 2), and it does not run"
    assert "/logs/ingest.log" in state["trouble"][0]["help"]
    assert state["trouble"][0]["since_ms"] == 1_000


def test_the_application_that_answers_is_named_on_both_sides() -> None:
    both: dict[str, Any] = {"current": "ctr2", "other": "ctr", "by": "ada", "seq": 3, "wall_ms": 7}
    replaced = said(gathered(moved(3, 10), nodes=(), switch=Switch(**both)), given=Given(app="shop"))
    assert replaced["headline"] == {"level": "good", "said": "ctr2 answers the callers of this model"}
    assert levels(replaced) == [("note", "switch")], "a replaced application needs no nodes"
    assert replaced["trouble"][0]["said"] == "ctr2 answers the callers of this model (switch 3), by ada"
    assert "`streamlearn switch shop --to ctr`" in replaced["trouble"][0]["help"]
    replacing = said(gathered(moved(3, 10), model="ctr2", switch=Switch(**both)))
    assert replacing["headline"]["said"] == "Version 10 is served, by all 2 nodes"
    assert replacing["trouble"][0]["said"] == "ctr stands beside this application since switch 3, by ada"
    assert "--done" in replacing["trouble"][0]["help"]
    for model, other in (("ctr2", ""), ("ctr", "")):
        after = said(gathered(moved(3, 10), model=model, switch=Switch(**(both | {"other": other}))))
        assert [what for _, what in levels(after)] == (["switch"] if model == "ctr" else [])


def test_a_node_that_did_not_act_on_a_move_is_named_with_what_it_answers_with() -> None:
    nodes = (node_of("a", 8, 4), node_of("b", 10, 3))
    pointer = moved(4, 8, held=True, taints=(9,))
    state = said(gathered(pointer, nodes=nodes))
    assert state["headline"] == {"level": "bad", "said": "Version 8 is served and held, by 1 of 2 nodes"}
    assert state["trouble"][0]["said"] == "b has not followed the last move: it answers with version 10"
    assert [(one["moves_behind"], one["versions_ahead"]) for one in state["nodes"]] == [(0, 0), (1, 2)]
    just_now = gathered(msgspec.structs.replace(pointer, wall_ms=NOW_MS - 10), nodes=nodes)
    assert ("bad", "node") not in levels(said(just_now)), "a node is given some beats before it is trouble"


@pytest.mark.parametrize(
    ("node", "level", "words"),
    [
        pytest.param(node_of("b", 10, 3, state="stale", said="no store"), "bad", "b is stale: no store", id="stale"),
        pytest.param(node_of("b", 10, 3, said="a file is torn"), "warn", "b says: a file is torn", id="says"),
        pytest.param(node_of("b", 0, 0, state="starting"), "note", "b is starting", id="starting"),
        pytest.param(node_of("b", 10, 3, state="draining"), "note", "b is draining", id="draining"),
    ],
)
def test_what_a_node_says_is_trouble_by_how_bad_it_is(node: Any, level: str, words: str) -> None:
    state = said(gathered(moved(3, 10), nodes=(node_of("a", 10, 3), node)))
    assert [(one["level"], one["said"]) for one in state["trouble"]] == [(level, words)]


def test_nodes_that_are_not_known_are_not_said_to_be_well() -> None:
    state = said(gathered(moved(3, 10), nodes=(), registry="redis://x does not answer"))
    assert state["headline"] == {"level": "bad", "said": "The pointer names version 10; nodes are unknown"}
    assert levels(state) == [("bad", "registry")]
    assert levels(said(gathered(moved(3, 10), nodes=()))) == [("bad", "nodes")]


def test_a_node_that_is_silent_is_gone_until_one_of_its_name_started_later() -> None:
    a, b = node_of("a", 10, 3), node_of("b", 10, 3)
    assert missing((a, b), []) == [a, b]
    again = msgspec.structs.replace(b, boot_id="another life", wall_ms=NOW_MS, since_ms=b.wall_ms + 1)
    assert missing((b,), [a, again]) == []
    # It was there before the other fell silent, so it has taken nobody's place.
    other = msgspec.structs.replace(again, since_ms=b.wall_ms)
    assert missing((b,), [a, other]) == [b]
    assert missing((b,), [a, other, again]) == missing((b,), [a, again, other]) == []
    state = said(gathered(moved(3, 10), nodes=(a,), gone=(b,)))
    assert state["headline"]["said"] == "Version 10 is served, by 1 of 2 nodes"
    assert [(one["name"], one["is_gone"]) for one in state["nodes"]] == [("a", False), ("b", True)]
    assert levels(state) == [("bad", "node")]


@pytest.mark.parametrize(
    ("age_ms", "level", "is_late"),
    [pytest.param(2_000, "good", False, id="two beats"), pytest.param(2_001, "warn", True, id="more")],
)
def test_a_node_is_late_after_two_beats_and_the_headline_is_not_green(age_ms: int, level: str, is_late: bool) -> None:
    nodes = (node_of("a", 10, 3), node_of("b", 10, 3, wall_ms=NOW_MS - age_ms))
    state = said(gathered(moved(3, 10), nodes=nodes))
    assert (state["headline"]["level"], state["nodes"][1]["is_late"]) == (level, is_late)


def test_a_registry_that_was_known_lately_is_a_warning_first() -> None:
    away = gathered(moved(3, 10), nodes=(), registry="no answer", known_ms=NOW_MS - 15_000)
    (trouble,) = said(away)["trouble"]
    assert (trouble["level"], trouble["since_ms"]) == ("warn", NOW_MS - 15_000)
    assert levels(said(gathered(moved(3, 10), nodes=(), registry="no answer", known_ms=NOW_MS - 15_001))) == [
        ("bad", "registry")
    ]


def test_the_newest_version_and_the_served_one_are_late_each_by_its_own_measure() -> None:
    def late(after_ms: int) -> dict[str, bool]:
        return dict(said(gathered(moved(3, 9), at_ms=NOW_MS + after_ms))["late"])

    assert late(30_000) == {"active": False, "newest": False}
    assert late(30_001) == {"active": False, "newest": True}
    assert late(60_000) == {"active": True, "newest": True}, "the served one by the event time it has learned"
    assert said(gathered(Pointer(), known=()))["late"] == {"active": False, "newest": False}


def test_a_hold_says_who_holds_since_when_and_why_and_what_ends_it() -> None:
    held = moved(4, 9, held=True, taints=(10,), by="anna", reason="clicks fell")
    state = said(gathered(held, moves=(moved(3, 10), held)))
    tainted, hold = state["trouble"]
    rewind, promote = "`streamlearn rewind MODEL --to 9`", "`streamlearn promote MODEL 10 --accept`"
    ways = f"{rewind} takes training back, with --skip past data that was wrong, or {promote} if the model was good"
    assert tainted["help"] == f"{ways}; then `streamlearn release MODEL`"
    assert hold["said"].endswith(". Held by anna since 2023-11-14 22:11:44 UTC: clicks fell")
    assert hold["help"] == "a release is refused until a newer version is clean"
    asked = Request(seq=1, to=ref(9), by="anna", wall_ms=NOW_MS)
    waiting = said(gathered(held, moves=(moved(3, 10), held), requests=(asked,)))["trouble"][0]
    assert waiting["help"].startswith("wait until training has gone back")
    clean = (*gathered(held).known, known_of(11, kind="revert", content_of=ref(9)))
    (free,) = said(gathered(held, known=clean))["trouble"]
    assert free["help"] == "`streamlearn release MODEL` lets nodes follow new versions again"


def test_versions_without_a_judged_figure_have_counts_and_say_when_a_window_closes() -> None:
    young = tuple(known_of(version, metrics={"samples": 9.0, "labels_learned": 4.0}) for version in range(1, 4))
    state = said(gathered(moved(1, 3), known=young), first_window=lambda watermarks: f"after {watermarks[0]}")
    assert state["figures"] == ["labels_learned", "samples", "rows", "bytes"]
    assert state["first_window"] == f"after {young[0].watermark_ms}"
    assert said(gathered(moved(3, 10)), first_window=lambda _: "never")["first_window"] == ""


def test_what_is_tainted_is_said_with_where_it_began() -> None:
    known = tuple(known_of(version, outcome="rejected" if version == 8 else "passed") for version in range(1, 11))
    state = said(gathered(moved(3, 7), known=known))
    assert [one["said"] for one in state["trouble"]] == [
        "versions 8 to 10 are tainted, and not followed: the judge rejected 8"
    ]
    assert [one["standing"] for one in state["versions"][-4:]] == ["active", "rejected", "tainted", "tainted"]
    assert state["headline"]["level"] == "warn"
    further = said(gathered(moved(5, 6, held=True, taints=(7, 9)), moves=()))
    assert further["trouble"][0]["said"] == "versions 7 to 10 are tainted, and not followed: 7 was rolled back"


def test_training_is_late_by_when_it_published_or_by_what_it_had_learned() -> None:
    late = gathered(moved(3, 10), at_ms=NOW_MS + 61_000)
    assert "no version was published since 10" in [one["said"] for one in said(late)["trouble"]]
    behind = (*gathered(moved(3, 10)).known[:-1], known_of(10, watermark_ms=NOW_MS - 61_000))
    assert ("warn", "training") in levels(said(gathered(moved(3, 10), known=behind)))
    assert levels(said(gathered(moved(3, 10), known=behind, is_live=False))) == [], "a replay's events are old"


def test_what_somebody_wanted_is_a_note_and_keeps_the_headline_good() -> None:
    pointer = moved(4, 9, held=True, canary=Canary(version=ref(10), share=0.25))
    asked = Request(seq=1, to=ref(5), by="anna", wall_ms=NOW_MS)
    moves = (moved(2, 9), moved(3, 9, held=True), pointer)
    state = said(gathered(pointer, moves=moves, requests=(asked,)))
    assert [one["what"] for one in state["trouble"]] == ["pointer", "canary", "request"]
    assert state["trouble"][0]["since_ms"] == moves[1].wall_ms, "since the move that laid the hold"
    assert state["headline"]["level"] == "good"
    assert state["versions"][-1]["standing"] == "canary"


def test_a_request_that_training_could_not_obey_is_a_warning_with_its_reason_for_a_day() -> None:
    refused = Refusal(seq=2, to=ref(5), by="anna", reason="a file is damaged", wall_ms=NOW_MS - 60_000)
    (trouble,) = said(gathered(moved(3, 10), refused=refused))["trouble"]
    assert (trouble["level"], trouble["what"], trouble["since_ms"]) == ("warn", "request", NOW_MS - 60_000)
    assert "could not go back to version 5" in trouble["said"]
    assert "a file is damaged" in trouble["said"]
    old = Refusal(seq=2, to=ref(5), reason="a file is damaged", wall_ms=NOW_MS - 86_400_000)
    assert said(gathered(moved(3, 10), refused=old))["trouble"] == []


def test_a_version_that_cannot_be_read_is_bad_where_it_is_served() -> None:
    torn = tuple(known_of(version, lacks="a file is gone" if version == 10 else "") for version in range(1, 11))
    assert ("bad", "versions") in levels(said(gathered(moved(3, 10), known=torn)))
    assert ("warn", "versions") in levels(said(gathered(moved(3, 9), known=torn)))


def test_moves_are_told_newest_first_by_what_each_changed() -> None:
    moves = (
        moved(1, 8),
        moved(2, 9),
        moved(3, 9, held=True, by="anna"),
        moved(4, 8, held=True, taints=(9,), by="anna", reason="clicks fell"),
        moved(5, 8, taints=(9,)),
        moved(7, 10),
    )
    state = said(gathered(moves[-1], moves=moves))
    assert [one["what"] for one in state["moves"]] == ["move", "release", "rollback", "hold", "promote", "promote"]
    assert state["moves"][2]["from"] == 9
    assert (state["moves"][2]["by"], state["moves"][2]["reason"]) == ("anna", "clicks fell")


def test_only_the_newest_versions_are_said_and_figures_are_the_judged_ones() -> None:
    metrics = {"auc": 0.7, "validation.click.log_loss": float("nan"), "validation.click.rows": 12.0, "samples": 9.0}
    known = (*gathered(moved(3, 10)).known[:-1], known_of(10, metrics=metrics))
    state = said(gathered(moved(3, 10), known=known), versions_max=2)
    assert [one["version"] for one in state["versions"]] == [9, 10]
    assert state["versions_left"] == 8
    judged = ["auc", "validation.click.log_loss", "validation.click.rows"]
    assert state["figures"] == [*judged, "samples", "rows", "bytes"]
    assert state["versions"][-1]["figures"] == [0.7, None, 12.0, 9.0, 7, 2_048]
    assert state["versions"][-1]["samples"] == 9.0
    assert json.dumps(state, allow_nan=False), "it is JSON as it stands"


def test_hit_rates_vectors_and_items_are_figures_and_no_figures_of_validation() -> None:
    metrics = {"library_items": 9.0, "vectors_changed": 4.0, "retrieval_hit_100": 0.3, "retrieval_positives": 12.0}
    state = said(gathered(moved(3, 10), known=(known_of(10, metrics=metrics),)), first_window=lambda _: "in a minute")
    assert state["figures"] == ["retrieval_hit_100", "vectors_changed", "library_items", "rows", "bytes"]
    assert state["versions"][-1]["figures"][:3] == [0.3, 4.0, 9.0]
    assert state["versions"][-1]["retrieval_hit_100"] == 0.3
    assert state["first_window"] == "in a minute"


def test_what_each_move_would_come_to_is_asked_of_the_decisions() -> None:
    may = said(gathered(moved(3, 10)))["may"]
    assert (may["rollback"]["version"], may["hold"]["version"]) == (9, 10)
    held = said(gathered(moved(4, 9, held=True, taints=(10,))))["may"]
    assert "tainted" in held["release"]["refused"]
    assert "rewind" in held["release"]["help"]
    assert "held already" in held["hold"]["refused"]


@given(
    outcomes=st.lists(st.sampled_from(["passed", "rejected", None]), min_size=1, max_size=8),
    lacks=st.sets(st.integers(1, 8), max_size=2),
    taints=st.sets(st.integers(1, 8), max_size=2),
    accepted=st.sets(st.integers(1, 8), max_size=2),
    floor=st.integers(0, 4),
    active=st.integers(1, 8),
)
def test_the_page_offers_to_go_back_where_the_decision_lets_it(
    outcomes: list[Any], lacks: set[int], taints: set[int], accepted: set[int], floor: int, active: int
) -> None:
    known = tuple(
        known_of(version, outcome=outcome, lacks="gone" if version in lacks else "")
        for version, outcome in enumerate(outcomes, 1)
    )
    pointer = moved(9, active, taints=tuple(sorted(taints)), accepted=tuple(sorted(accepted)), floor=floor)
    found: Gathered = gathered(pointer, known=known, nodes=())
    allowed = set()
    for one in known:
        if one.version >= active:
            continue
        try:
            decisions.rollback(pointer, known, one.version)
        except MoveRefused:
            continue
        allowed.add(one.version)
    assert may_go_back_to(found) == allowed
