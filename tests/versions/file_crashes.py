"""What works on whole versions, killed at a chosen change of files; the store stays readable whatever happened.

Run as a program: `python -m tests.versions.file_crashes FOLDER WHAT STEPS [EVERY]`; prints, for each step that is
tried, the signal that ended the process, and whether its work was done then.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.settings import RetentionSettings
from streamlearn.table import TableSet
from streamlearn.testing import ManualClock
from streamlearn.versions import (
    Chain,
    Store,
    compact,
    load,
    open_store,
    plan_gc,
    sweep,
    verify,
    write_revert,
)
from tests.dying import die_at, forked, preloaded
from tests.versions.history import MODEL, OPTIONS, Trainer, everything

__all__ = ["main"]

_DAYS_MS = 30 * 86_400_000
_DONE, _NOT_DONE = 10, 11
# Doing the work again takes longest, so it is not tried after each step.
_REDONE_EVERY = 5


def main(folder: str, what: str, steps: int, every: int = 1) -> None:
    template = Path(folder)
    _made(template)
    act, _ = _WHAT[what]
    ends = []
    whole = template.with_name("whole")
    _copied(template, whole)
    preloaded(lambda: _check(whole, what, is_redone=True))
    for step in range(0, steps, every):
        place = template.with_name(f"step-{step}")
        _copied(template, place)
        found = _dying(lambda place=place: act(open_store(str(place))), step)  # type: ignore[misc]
        is_redone = step // every % _REDONE_EVERY == 0
        done = forked(lambda place=place, is_redone=is_redone: _check(place, what, is_redone=is_redone))  # type: ignore[misc]
        if done not in (_DONE, _NOT_DONE):
            sys.exit(f"after step {step} of {what} the store is not what it is to be: {done}")
        ends.append((max(0, -found), done == _DONE))
        shutil.rmtree(place)
        if found >= 0:
            break
    print(json.dumps(ends))


def _made(place: Path) -> None:
    """Versions 1 to 3, with a base at 2; by a child, so that this process never has threads."""

    def write() -> int:
        trainer = Trainer(open_store(str(place)))
        trainer.story([1, 2])
        compact(trainer.store, MODEL)
        trainer.story([3])
        place.with_suffix(".json").write_text(json.dumps([_content(trainer.store, version) for version in (2, 3)]))
        return 0

    if forked(write):
        sys.exit("the versions could not be written")


def _copied(template: Path, place: Path) -> None:
    """The same files under other names: nothing changes a file of a store once it is there."""
    shutil.copytree(template, place, copy_function=os.link)


def _dying(work: Callable[[], int], step: int) -> int:
    """The exit status of a child that dies at a step of it."""

    def begun() -> int:
        die_at(step)
        return work()

    return forked(begun)


def _content(store: Store, version: int) -> str:
    """A digest of all rows of a version, with state and use, as they are loaded for training."""
    tables = TableSet(OPTIONS)
    chain = Chain.find(store, MODEL, version)
    load(chain, tables, training=True)
    return hashlib.sha256(repr(sorted(everything(tables, chain.version).items())).encode()).hexdigest()


def _check(place: Path, what: str, *, is_redone: bool) -> int:
    """The versions that were to stay are what they were, and the work can be done again to its end."""
    store, expected = open_store(str(place)), json.loads((place.parent / "store.json").read_text())
    act, is_done = _WHAT[what]
    was_done = is_done(store)
    _check_readable(store, expected)
    if not was_done and is_redone:
        act(store)
        _check_readable(store, expected)
        found = verify(store, MODEL)
        assert not found.defects, found.defects
        assert is_done(store)
    return _DONE if was_done else _NOT_DONE


def _check_readable(store: Store, expected: list[str]) -> None:
    assert [_content(store, version) for version in (2, 3)] == expected
    newest = Chain.find(store, MODEL)
    assert newest.version == 3 or (newest.manifest.kind == "revert" and _content(store, 4) == expected[0])


def _revert(store: Store) -> int:
    write_revert(store, MODEL, to=2, run=1, version=4)
    return 0


def _collect(store: Store) -> int:
    clock = ManualClock(SYSTEM_CLOCK.wall_ms() + _DAYS_MS)
    plan = plan_gc(store, MODEL, settings=RetentionSettings(keep_versions_min=2), clock=clock)
    sweep(store, plan, raise_floor=lambda floor: None, wait=lambda: None)
    return 0


def _is_collected(store: Store) -> bool:
    clock = ManualClock(SYSTEM_CLOCK.wall_ms() + _DAYS_MS)
    return not plan_gc(store, MODEL, settings=RetentionSettings(keep_versions_min=2), clock=clock).removals


def _compact(store: Store) -> int:
    compact(store, MODEL)
    return 0


_WHAT: dict[str, tuple[Callable[[Store], int], Callable[[Store], bool]]] = {
    "revert": (_revert, lambda store: Chain.find(store, MODEL).version == 4),
    "compact": (_compact, lambda store: Chain.find(store, MODEL).manifest.kind == "base"),
    "gc": (_collect, _is_collected),
}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(one) for one in sys.argv[3:5]))
