"""Versions whose stored answers may stand in for those of another one: all small histories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest

from streamlearn.versions import Pointer, VersionRef
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.ancestors import usable_versions
from streamlearn.versions.pointer.moves import taints_of


def ref(version: int, run: int = 1) -> VersionRef:
    return VersionRef(version=version, run=run, sha256=f"{version * 1000 + run:064x}")


def history(reverts: dict[int, int], rejected: Sequence[int] = (), last: int = 5) -> list[Known]:
    """Versions from 1; some are reverts to others, some were rejected."""
    made: list[Known] = []
    for version in range(1, last + 1):
        more: dict[str, Any] = {"kind": "delta"}
        if version in reverts:
            more = {"kind": "revert", "content_of": ref(reverts[version])}
        outcome: Any = "rejected" if version in rejected else "passed"
        made.append(Known(ref=ref(version), parent=ref(version - 1) if version > 1 else None, outcome=outcome, **more))
    return made


def histories() -> Iterator[tuple[list[Known], Pointer]]:
    """Each history of five versions with up to one revert, two taints, one rejection, one acceptance, and a floor."""
    numbers = range(1, 6)
    reverts = [{}, *({at: to} for at in (3, 4, 5) for to in range(1, at))]
    taints = [taint for size in range(3) for taint in combinations(numbers, size)]
    for revert, taint, rejected in product(reverts, taints, [(), (2,), (4,)]):
        for accepted, floor in product([(), (3,)], [0, 3]):
            yield history(revert, rejected), Pointer(active=ref(5), taints=taint, accepted=accepted, floor=floor)


def test_only_the_version_and_ancestors_without_a_taint_are_usable_in_every_small_history() -> None:
    checked = 0
    for known, pointer in histories():
        tainted, contents = taints_of(pointer, known), {entry.version: entry.content_of for entry in known}
        for answering, count in product(range(1, 6), range(4)):
            usable = usable_versions(pointer, known, ref(answering), count)
            ancestors = [answering]
            while len(ancestors) <= count:
                content = contents[ancestors[-1]]
                before = ancestors[-1] - 1 if content is None else content.version
                if before < 1 or ancestors[-1] < pointer.floor:
                    break
                ancestors.append(before)
            expected = [at for at in ancestors if at not in tainted and at >= pointer.floor]
            assert [one.version for one in usable] == ([] if answering in tainted else expected)
            assert all(one == ref(one.version) for one in usable)
            checked += 1
    assert checked > 30_000


@pytest.mark.parametrize(("answering", "expected"), [(4, (4, 3, 2)), (5, ()), (6, ())])
def test_after_a_rollback_lists_of_versions_taken_back_are_not_usable(
    answering: int, expected: tuple[int, ...]
) -> None:
    pointer = Pointer(active=ref(4), previous=ref(6), held=True, taints=(5,))
    usable = usable_versions(pointer, history({}, last=6), ref(answering), 2)
    assert tuple(one.version for one in usable) == expected


def test_what_a_revert_left_behind_is_no_ancestor() -> None:
    # Version 5 has the content of version 2, so 3 and 4 are not before it, tainted or not.
    usable = usable_versions(Pointer(active=ref(5)), history({5: 2}), ref(5), 3)
    assert [one.version for one in usable] == [5, 2, 1]


def test_an_unknown_version_and_another_of_the_same_number_use_nothing() -> None:
    pointer, known = Pointer(active=ref(5)), history({})
    assert usable_versions(pointer, known, ref(9), 3) == ()
    assert usable_versions(pointer, known, ref(5, run=2), 3) == ()
    assert usable_versions(pointer, [], ref(5), 3) == ()
