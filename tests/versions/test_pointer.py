"""Decisions about the pointer: what each does, and each refusal by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

import pytest
from msgspec.structs import replace

from streamlearn.errors import MoveRefused, RunOver, StreamlearnError, UsageError
from streamlearn.versions import Known, Pointer
from streamlearn.versions.format.record import decode_record, encode_record
from streamlearn.versions.pointer.moves import (
    Canary,
    before,
    hold,
    promote,
    publish,
    raise_floor,
    release,
    rollback,
    steps_back,
    taints_of,
)
from tests.versions.racers import ref


def known(version: int, outcome: Any = "passed", **changed: Any) -> Known:
    return Known(ref=ref(version), kind="delta", outcome=outcome, written_wall_ms=version * 10, **changed)


def revert(version: int, of: int, outcome: Any = "passed") -> Known:
    return replace(known(version, outcome), kind="revert", content_of=ref(of))


FIVE = [known(version) for version in (1, 2, 4, 5, 6)]
AT_5 = Pointer(seq=9, active=ref(5), previous=ref(4), run=3)
# What training did after version 5, with 2 being the one gone back to.
LEFT = rollback(AT_5, FIVE, 2)


def refused(call: Callable[..., object], said: str, help: str, kind: type[StreamlearnError] = MoveRefused) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert said in caught.value.message
    assert help in caught.value.help


def test_a_new_version_is_followed() -> None:
    moved = publish(AT_5, FIVE, 6, 3)
    assert (moved.seq, moved.active, moved.previous, moved.run) == (10, ref(6), ref(5), 3)
    assert publish(Pointer(), FIVE, 1, 1).previous is None
    assert publish(AT_5, FIVE, 4, 4).active == ref(4)  # a newer run goes on from an older version


def test_a_run_that_is_over_promotes_nothing() -> None:
    refused(lambda: publish(AT_5, FIVE, 6, 2), "run 3 has moved the pointer", "newer one has taken over", RunOver)


def test_a_pointer_that_is_held_follows_nothing() -> None:
    refused(lambda: publish(replace(AT_5, held=True), FIVE, 6, 3), "held at 5", "release")


def test_a_pointer_that_tries_a_version_follows_no_other() -> None:
    tried = replace(AT_5, canary=Canary(version=ref(4), share=0.25))
    refused(lambda: publish(tried, FIVE, 6, 3), "version 4 is tried on 25% of the requests", "promote that version")


def test_an_older_version_is_not_followed() -> None:
    for version in (4, 5):
        refused(partial(publish, AT_5, FIVE, version, 3), "version 5 is active", "only a newer version")


def test_a_version_that_was_not_judged_is_not_followed_and_can_be_promoted() -> None:
    new = [*FIVE, known(7, None)]
    refused(lambda: publish(AT_5, new, 7, 3), "the judge's verdict: none yet", "wait for its verdict")
    assert promote(AT_5, new, 7).active == ref(7)


def test_a_version_that_was_rejected_and_all_after_it_are_not_served() -> None:
    bad = [*FIVE, known(7, "rejected"), known(8)]
    refused(lambda: publish(AT_5, bad, 7, 3), "the judge's verdict: rejected", "accept")
    refused(lambda: publish(AT_5, bad, 8, 3), "tainted since version 7", "promote MODEL 8 --accept")
    refused(lambda: promote(AT_5, bad, 7), "it is tainted", "promote MODEL 7 --accept")
    assert release(AT_5, bad).active == ref(6)
    accepted = promote(AT_5, bad, 7, accept=True)
    assert (accepted.active, accepted.accepted) == (ref(7), (7,))
    assert publish(accepted, bad, 8, 3).active == ref(8)


def test_a_version_that_is_not_there_is_refused_with_those_that_are() -> None:
    torn = [*FIVE, known(7, lacks="version 3 is gone")]
    for call in (
        lambda version: publish(AT_5, torn, version, 3),
        lambda version: promote(AT_5, torn, version),
        lambda version: rollback(AT_5, torn, version),
    ):
        refused(partial(call, 3), "not a version of the history", "complete and clean are 1, 2, 4, 5, 6")
        refused(partial(call, 7), "not complete: version 3 is gone", "complete and clean are 1, 2, 4, 5, 6")
        refused(partial(call, 0), "not a version of the history", "complete and clean")
    refused(lambda: promote(Pointer(), [], 1), "not a version of the history", "no version that is complete and clean")


def test_a_version_below_the_floor_is_refused() -> None:
    raised = raise_floor(AT_5, FIVE, 4)
    assert raised.floor == 4
    for call in (
        lambda: promote(raised, FIVE, 2),
        lambda: rollback(raised, FIVE, 2),
        lambda: publish(raised, FIVE, 2, 4),
    ):
        refused(call, "below the floor 4", "complete and clean are 4, 5, 6")
    refused(
        lambda: steps_back(raised, FIVE, 2),
        "no clean version 2 steps back (the active one is 5): 1 is older",
        "versions",
    )
    refused(lambda: release(Pointer(floor=9), FIVE), "no clean version after none", "wait for the next version")


def test_a_floor_only_rises_and_nothing_that_is_needed_goes() -> None:
    raised = raise_floor(AT_5, FIVE, 4)
    refused(lambda: raise_floor(raised, FIVE, 3), "floor 3 is below 4", "only rises")
    refused(lambda: raise_floor(AT_5, FIVE, 5), "version 4 cannot be deleted: it is previous", "keep the active")
    refused(lambda: raise_floor(AT_5, FIVE, 6), "cannot be deleted: it is", "keep the active")
    tried = replace(AT_5, previous=None, canary=Canary(version=ref(4), share=0.5))
    refused(lambda: raise_floor(tried, FIVE, 5), "version 4 cannot be deleted: it is canary", "keep the active")
    refused(
        lambda: raise_floor(Pointer(), FIVE, 7), "version 6 cannot be deleted: it is the newest", "continues from it"
    )
    refused(
        lambda: raise_floor(Pointer(), FIVE, 7), "version 6 cannot be deleted: it is the newest", "continues from it"
    )


def test_a_rollback_holds_and_taints_what_it_left() -> None:
    assert (LEFT.active, LEFT.held, LEFT.taints, LEFT.previous) == (ref(2), True, (4,), ref(5))
    assert taints_of(LEFT, FIVE) == {4: 4, 5: 4, 6: 4}
    refused(lambda: promote(LEFT, FIVE, 4), "it is tainted", "rewind")
    tainted_between = replace(AT_5, active=ref(6), taints=(4,), accepted=(6,))
    refused(lambda: rollback(tainted_between, FIVE, 5), "it is tainted since version 4", "promote MODEL 5 --accept")
    refused(lambda: release(LEFT, FIVE), "no clean version after 2: versions 4, 5, 6 are tainted", "--accept")
    refused(lambda: publish(replace(LEFT, held=False), FIVE, 6, 3), "tainted since version 4", "--accept")


def test_a_rollback_to_the_active_version_only_holds_it_and_ends_a_trial() -> None:
    held = rollback(AT_5, FIVE, 5)
    assert (held.active, held.held, held.taints, held.previous) == (ref(5), True, (), ref(4))
    tried = rollback(promote(AT_5, FIVE, 6, share=0.1), FIVE, 5)
    assert (tried.canary, tried.taints) == (None, (6,))


def test_a_rollback_goes_back_and_never_forward() -> None:
    refused(lambda: rollback(AT_5, FIVE, 6), "newer than the active one, 5", "promote")
    refused(lambda: rollback(Pointer(), FIVE, 1), "newer than the active one, none", "promote")


def test_a_rollback_takes_back_what_was_accepted_after_where_it_goes() -> None:
    accepted = replace(AT_5, accepted=(2, 5))
    assert rollback(accepted, FIVE, 2).accepted == (2,)
    assert rollback(accepted, FIVE, 5).accepted == (2, 5)


def test_steps_back_count_clean_versions_alone() -> None:
    mixed = [known(1), known(2, None), known(3, lacks="gone"), known(4), known(5)]
    assert steps_back(AT_5, mixed, 1) == 4
    assert steps_back(AT_5, mixed, 2) == 1
    refused(
        lambda: steps_back(AT_5, mixed, 3),
        "no clean version 3 steps back (the active one is 5): 2 are older",
        "versions",
    )
    refused(lambda: steps_back(AT_5, mixed, 0), "0 steps", "1 or more", UsageError)


def test_steps_back_do_not_end_at_a_model_that_has_learned_nothing() -> None:
    untrained = replace(known(1), kind="base", metrics={"samples": 0.0}, rows=0)
    history = [untrained, known(2), known(3), known(4), known(5)]
    assert steps_back(AT_5, history, 3) == 2
    refused(lambda: steps_back(AT_5, history, 4), "3 are older, and version 1, which has learned nothing", "--to 1")
    assert rollback(AT_5, history, 1).active_version == 1
    assert steps_back(AT_5, [replace(untrained, rows=3), *history[1:]], 4) == 1


def test_the_version_before_a_time_is_clean_and_before_the_active_one() -> None:
    assert before(AT_5, FIVE, 41) == 4
    assert before(AT_5, FIVE, 10_000) == 4
    assert before(AT_5, FIVE, 40) == 2
    refused(
        lambda: before(AT_5, FIVE, 10),
        "no clean version before 1970-01-01 00:00:00+00:00 (the active one is 5): 0 are older",
        "versions",
    )


def test_a_release_follows_the_newest_clean_version() -> None:
    put_back = [*FIVE, revert(7, of=2), known(8), known(9, None)]
    assert taints_of(LEFT, put_back) == {4: 4, 5: 4, 6: 4}
    freed = release(LEFT, put_back)
    assert (freed.active, freed.held, freed.canary) == (ref(8), False, None)
    assert release(rollback(AT_5, FIVE, 5), FIVE).active == ref(6)


def test_a_release_where_nothing_newer_is_bad_stays_and_follows() -> None:
    held = rollback(replace(AT_5, active=ref(6)), FIVE, 6)
    assert release(held, FIVE).held is False
    assert release(held, [*FIVE, known(7, None)]).active == ref(6)
    refused(lambda: release(held, [*FIVE, known(7, "rejected")]), "after 6: version 7 is tainted", "rewind")
    refused(lambda: release(Pointer(), []), "after none: it is the newest", "wait for the next version")
    many = [*FIVE, *(known(version, "rejected") for version in range(7, 14))]
    refused(lambda: release(held, many), "versions 7, 8, 9, 10, 11, ... are tainted", "rewind")


def test_a_revert_to_a_tainted_version_is_tainted() -> None:
    assert taints_of(LEFT, [*FIVE, revert(7, of=5), known(8)]) == {4: 4, 5: 4, 6: 4, 7: 4, 8: 4}
    assert 7 not in taints_of(LEFT, [*FIVE, revert(7, of=1)])
    assert taints_of(Pointer(), [known(1), revert(2, of=1, outcome="rejected"), known(3)]) == {2: 2, 3: 2}


def test_a_rollback_taints_all_that_was_served_after_it_though_training_was_put_back_in_between() -> None:
    # Versions 6 to 8 were left, 9 went back to 5, and 10 to 12 were followed.
    story = [*(known(version) for version in range(1, 9)), revert(9, of=5), *(known(at) for at in (10, 11, 12))]
    at_12 = Pointer(seq=9, active=ref(12), previous=ref(11), run=3, taints=(6,))
    left = rollback(at_12, story, 5)
    assert sorted(taints_of(left, story)) == [6, 7, 8, 9, 10, 11, 12]
    refused(lambda: release(left, story), "no clean version after 5: versions 6, 7, 8, 9, 10, ...", "rewind")
    refused(lambda: promote(left, story, 12), "tainted since version 9", "accept")
    refused(lambda: publish(replace(left, held=False), [*story, known(13)], 13, 3), "tainted since version 9", "accept")
    # What training makes of a version that was not left is clean, as ever.
    assert release(left, [*story, revert(13, of=5), known(14)]).active == ref(14)
    raised = raise_floor(replace(left, previous=ref(5)), story, 5)
    assert sorted(taints_of(raised, story[4:])) == [6, 7, 8, 9, 10, 11, 12]


def test_a_rollback_taints_what_is_served_though_the_history_read_does_not_have_it_yet() -> None:
    story = [*FIVE, revert(7, of=1)]
    served = replace(AT_5, active=ref(9), canary=Canary(version=ref(10), share=0.5))
    left = rollback(served, story, 2)
    # Whatever was written meanwhile between 7 and these two, they were served and left.
    assert {7, 9, 10} <= set(taints_of(left, [*story, revert(8, of=1), known(9), revert(10, of=1)]))


def test_a_hold_and_the_end_of_an_older_canary_taint_nothing() -> None:
    story = [*FIVE, revert(7, of=2), known(8)]
    assert hold(AT_5, story).taints == ()
    assert hold(promote(AT_5, story, 6, share=1.0, shadow=True), story).taints == ()
    assert rollback(promote(AT_5, story, 4, share=0.5), story, 5).taints == ()


def test_a_trial_needs_another_version_and_a_share() -> None:
    tried = promote(AT_5, FIVE, 6, share=0.1)
    assert (tried.active, tried.canary) == (ref(5), Canary(version=ref(6), share=0.1))
    assert promote(tried, FIVE, 6).canary is None
    refused(lambda: promote(AT_5, FIVE, 5, share=0.1), "it is the active one", "beside another")
    refused(lambda: promote(Pointer(), FIVE, 5, share=0.1), "no version is active", "beside another")
    for share in (0.0, 1.0, -1.0, float("nan")):
        refused(partial(promote, AT_5, FIVE, 6, share=share), "invalid share", "0.1", UsageError)


def test_a_version_in_shadow_answers_nobody_and_so_may_be_tainted_and_leaves_no_taint() -> None:
    tried = promote(AT_5, FIVE, 6, share=1.0, shadow=True)
    assert (tried.active, tried.canary) == (ref(5), Canary(version=ref(6), share=1.0, shadow=True))
    assert tried.needed["shadow"] == ref(6)
    refused(lambda: publish(tried, [*FIVE, known(7)], 7, 3), "in shadow of 100% of the requests", "promote")
    ended = promote(tried, FIVE, 5)
    assert (ended.active, ended.canary) == (ref(5), None)
    assert rollback(tried, FIVE, 5).taints == ()
    assert rollback(tried, FIVE, 4).taints == (5,)
    bad = [*FIVE, known(7, "rejected")]
    assert promote(AT_5, bad, 7, share=0.5, shadow=True).accepted == ()
    refused(lambda: promote(AT_5, bad, 7, share=0.5), "it is tainted", "accept")
    refused(lambda: promote(AT_5, FIVE, 6, share=1.5, shadow=True), "invalid share 1.5", "0.1", UsageError)


def test_a_canary_is_written_as_before_there_were_shadows_and_read_both_ways() -> None:
    tried = promote(AT_5, FIVE, 6, share=0.25)
    assert b"shadow" not in encode_record(tried)
    shadowed = promote(AT_5, FIVE, 6, share=0.25, shadow=True)
    for pointer in (tried, shadowed):
        found = decode_record(encode_record(pointer), Pointer, "a record")
        assert found.canary == pointer.canary


def test_an_older_version_is_not_promoted_where_newer_ones_would_be_followed_at_once() -> None:
    refused(lambda: promote(AT_5, FIVE, 2), "older than the active one, 5", "rollback MODEL --to 2")
    assert promote(replace(AT_5, held=True), FIVE, 2).active == ref(2)


def test_a_promotion_by_hand_keeps_the_hold() -> None:
    assert promote(replace(AT_5, held=True), FIVE, 6).held


def test_what_stays_is_tainted_though_what_it_began_with_is_gone() -> None:
    story = [known(1), known(2, "rejected"), known(3), revert(4, of=3), revert(5, of=1), known(6, None)]
    raised = raise_floor(Pointer(active=ref(4)), story, 3)
    assert (raised.floor, raised.taints, taints_of(raised, story[2:])) == (3, (3,), {3: 3, 4: 3})
    raised = raise_floor(Pointer(active=ref(4), accepted=(2,)), story, 3)
    assert taints_of(raised, story[2:]) == {}
    raised = raise_floor(Pointer(active=ref(5)), story, 4)
    assert taints_of(raised, story[3:]) == {4: 4}
    refused(lambda: publish(raised, story[3:], 6, 3), "the judge's verdict: none yet", "wait")


def test_a_rollback_taints_what_was_published_after_the_history_was_read() -> None:
    published = replace(AT_5, seq=10, active=ref(7), previous=ref(5))
    held = rollback(published, FIVE, 6)
    assert (held.active, held.taints) == (ref(6), (7,))
    tried = replace(AT_5, canary=Canary(version=ref(7), share=0.1))
    assert rollback(tried, FIVE[:-1], 5).taints == (7,)


def test_a_floor_forgets_no_taint_of_a_version_it_does_not_know() -> None:
    left = replace(AT_5, taints=(2, 7), accepted=(1, 8))
    raised = raise_floor(left, FIVE, 4)
    assert (7 in raised.taints, raised.accepted) == (True, (8,))


def test_a_floor_is_raised_in_a_long_history_without_comparing_all_with_all() -> None:
    long = [known(version) for version in range(1, 20_001)]
    begin_s = process_time()
    assert raise_floor(AT_5, long, 4).floor == 4
    assert process_time() - begin_s < 10  # all with all takes minutes


def test_what_is_below_the_floor_and_not_removed_yet_changes_nothing_of_what_stays() -> None:
    # 4 was rejected, 5 accepted all the same; both are below the floor, and 7 has the content of 5.
    story = [known(1), known(4, "rejected"), known(5), known(6), revert(7, 5), known(8)]
    pointer = replace(AT_5, accepted=(5,), active=ref(7), previous=ref(6))
    assert taints_of(pointer, story) == {4: 4}
    raised = raise_floor(pointer, story, 6)
    for still_there in (0, 1, 2, 3):
        assert [one for one in taints_of(raised, story[still_there:]) if one >= 6] == []
    # The other way round: a taint that began below the floor stays a taint.
    bad = replace(AT_5, active=ref(6), previous=ref(6))
    raised = raise_floor(bad, story, 6)
    for still_there in (0, 1, 2, 3):
        assert [one for one in taints_of(raised, story[still_there:]) if one >= 6] == [6, 7, 8]


def test_a_rollback_to_the_active_version_taints_what_answered_before_it() -> None:
    gone_back = promote(rollback(AT_5, FIVE, 5), FIVE, 2)  # it was held: nothing is tainted by that
    assert gone_back.taints == ()
    held = rollback(gone_back, FIVE, 2)
    assert set(taints_of(held, FIVE)) >= {4, 5}
    refused(lambda: release(held, FIVE), "versions 4, 5, 6", "rewind")
    tried = promote(replace(AT_5, active=ref(4), previous=None), FIVE, 5, share=0.5)
    in_shadow = promote(tried, FIVE, 5, share=0.5, shadow=True)
    assert 5 in taints_of(rollback(in_shadow, FIVE, 4), FIVE)


def test_a_second_rollback_leaves_a_revert_clean_that_nobody_was_answered_by() -> None:
    history = (*FIVE, revert(7, 4, "passed"))
    held = rollback(rollback(AT_5, FIVE, 4), history, 4)
    assert 7 not in taints_of(held, history)
    assert release(held, history).active == ref(7)


def test_a_hold_taints_nothing() -> None:
    gone_back = replace(promote(rollback(AT_5, FIVE, 5), FIVE, 2), held=False)
    assert hold(gone_back, FIVE).taints == ()
