"""Writers that die: forked from a process of one thread, killed at a chosen change of files.

Run as a program: `python -m tests.versions.crashes FOLDER FIRST LAST`; prints, for each step, how the writer ended.
"""

from __future__ import annotations

import json
import sys

from streamlearn.versions import Chain, Cut, Store, VersionWriter, open_store
from tests.dying import die_at, forked, preloaded
from tests.versions.history import MODEL, Trainer

__all__ = ["main"]


def main(folder: str, first: int, last: int) -> None:
    trainer = Trainer(open_store(folder))
    trainer.story([1])
    trainer.learn(2, 120)
    trainer.tables.seal(2)
    ends: list[tuple[int, bool]] = []
    preloaded(lambda: Trainer(open_store(f"{folder}-whole")).story([1]))
    for step in range(first, last):
        ends += [_ended(trainer, step)]
        if not ends[-1][0]:
            break  # it found nothing left to die at
    print(json.dumps(ends))


def _ended(trainer: Trainer, step: int) -> tuple[int, bool]:
    """The signal the writer died of, and whether version 2 was committed then; which another writer is to repair."""

    def write() -> None:
        die_at(step)
        _write(trainer)

    status = forked(write)
    assert status <= 0, "see above"
    store = open_store(trainer.store.url)
    is_committed = Chain.find(store, MODEL).version == 2
    if not is_committed:
        _write(trainer)
    _check(store)
    # What is not finished stays, and the next writer begins anew beside it.
    for file in Chain.find(store, MODEL).manifest.files:
        store.remove(f"{trainer.head(2).folder}/{file.path}")
    store.remove(f"{trainer.head(2).folder}/manifest.json")
    return -status, is_committed


def _write(trainer: Trainer) -> None:
    head = trainer.head(2)
    entries = trainer.write(head, 1, 1)
    VersionWriter(open_store(trainer.store.url), head).finish(Cut(), entries)


def _check(store: Store) -> None:
    """Every file under a final name is whole, whoever wrote it; and what a manifest names is there."""
    chain = Chain.find(store, MODEL)
    assert chain.version == 2
    names = {f"{chain.head.folder}/{one.path}": one for one in chain.manifest.files}
    for kind in ("rows", "optimizer", "gone", "upkeep"):
        folder = f"{chain.head.folder}/{kind}"
        for entry in store.entries(folder):
            path = f"{folder}/{entry.name}"
            sha256 = names[path].sha256
            assert entry.name.endswith(f"-{sha256[:16]}.arrow")
            store.read(path, bytes_max=names[path].bytes, sha256=sha256)
            names.pop(path)
    assert not names


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
