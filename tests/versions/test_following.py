"""What a node does next follows from the pointer, the history and what it has staged, and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from streamlearn.versions import Known, Pointer, VersionRef
from streamlearn.versions.pointer.moves import Canary
from streamlearn.versions.replica.pointer_follower import Plan, kept_of, plan_of, wanted_of


def ref(version: int, run: int = 1) -> VersionRef:
    return VersionRef(version=version, run=run, sha256="0" * 64)


def refs(*versions: int) -> list[VersionRef]:
    return [ref(version) for version in versions]


def history(*versions: VersionRef | int, **said: Any) -> list[Known]:
    named = [ref(one) if isinstance(one, int) else one for one in versions]
    return [Known(ref=one, kind="delta", **said) for one in named]


def pointer(active: int | VersionRef | None, **said: Any) -> Pointer:
    return Pointer(seq=1, active=ref(active) if isinstance(active, int) else active, **said)


@pytest.mark.parametrize(
    ("at", "known", "staged", "plan"),
    [
        # Nothing is served yet.
        (pointer(None), history(1, 2), [], Plan()),
        # There are no tables yet.
        (pointer(3), history(1, 2, 3), [], Plan(begin=ref(3), is_urgent=True, is_wanted=True)),
        # The pointer is ahead of what is staged.
        (pointer(3), history(1, 2, 3), refs(1, 2), Plan(to=ref(3), is_wanted=True)),
        # It is there; newer ones are staged ahead, and a history that is not known yet is no reason to wait.
        (pointer(2), history(1, 2, 3, 5), refs(1, 2), Plan(to=ref(5))),
        (pointer(2), history(1, 2), refs(1, 2), Plan()),
        (pointer(2), [], refs(1, 2), Plan()),
        (pointer(3), [], refs(1, 2), Plan(to=ref(3), is_wanted=True)),
        # Tainted versions are not staged ahead; what is clean after them is.
        (pointer(2, taints=(3,)), history(1, 2, 3, 4), refs(1, 2), Plan()),
        (pointer(2, taints=(3,), accepted=(4,)), history(1, 2, 3, 4), refs(1, 2), Plan(to=ref(4))),
        # The canary is wanted as well.
        (
            pointer(2, canary=Canary(version=ref(4), share=0.5)), history(1, 2, 3, 4), refs(1, 2),
            Plan(to=ref(4), is_wanted=True),
        ),
        # What is staged of another run, and not served, is left for the history as it is.
        (
            pointer(2), history(1, 2, ref(3, 2)), refs(1, 2, 3),
            Plan(begin=ref(2), why="version 3 of run 1 is no longer in the history"),
        ),
        # A history that was read before the version was committed says nothing against it.
        (pointer(3), history(1, 2), refs(1, 2, 3), Plan()),
        # What answers and is not of the history goes on until the pointer moves.
        (pointer(3), history(1, 2, ref(3, 2)), refs(1, 2, 3), Plan()),
    ],
)  # fmt: skip
def test_the_plan(at: Pointer, known: Sequence[Known], staged: Sequence[VersionRef], plan: Plan) -> None:
    assert plan_of(at, known, staged) == plan


def test_a_version_that_is_not_kept_or_is_another_one_is_built() -> None:
    plan = plan_of(pointer(2), history(1, 2, 3, 4), refs(3, 4))
    assert (plan.begin, plan.is_urgent) == (ref(2), True)
    assert "2 of run 1 is not kept any more" in plan.why
    plan = plan_of(pointer(ref(3, 2)), history(1, 2, ref(3, 2)), refs(2, 3))
    assert (plan.begin, plan.is_urgent) == (ref(3, 2), True)
    assert plan.why == "version 3 of run 2 is wanted, but the store has 3 of run 1"


def test_tables_are_built_from_the_first_version_that_is_wanted() -> None:
    at = pointer(5, canary=Canary(version=ref(2), share=0.5))
    assert wanted_of(at) == (ref(5), ref(2))
    assert plan_of(at, history(1, 2, 3, 4, 5), refs(4, 5)).begin == ref(2)


@pytest.mark.parametrize(
    ("at", "active", "count", "kept"),
    [
        (pointer(5), 5, 2, {3, 4, 5, 6, 7}),
        (pointer(5), 5, 1, {4, 5, 7}),
        # What was active before is one of the older ones.
        (pointer(5, previous=ref(1)), 5, 2, {1, 4, 5, 6, 7}),
        (pointer(5, previous=ref(1)), 5, 1, {1, 5, 7}),
        # What is answered with now stays until it is moved away from; tainted versions go, but what was left last.
        (pointer(3, previous=ref(6), taints=(4,)), 6, 2, {1, 2, 3, 6}),
        (pointer(5, canary=Canary(version=ref(2), share=0.5)), 5, 1, {2, 4, 5, 7}),
    ],
)
def test_what_stays(at: Pointer, active: int, count: int, kept: set[int]) -> None:
    found = kept_of(refs(1, 2, 3, 4, 5, 6, 7), at, history(1, 2, 3, 4, 5, 6, 7), ref(active), count)
    assert {one.version for one in found} == kept
