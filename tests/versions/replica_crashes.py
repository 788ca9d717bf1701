"""Nodes that die while they stage: forked, killed at a chosen read of the store, and started again.

Run as a program: `python -m tests.versions.replica_crashes FOLDER`; prints the signal each node died of.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial

from streamlearn.versions import Store, open_store
from tests.dying import forked, preloaded
from tests.versions.nodes import SpiedStore, World

__all__ = ["main"]

_STEPS_MAX = 200


def main(folder: str) -> None:
    world = World(open_store(folder), registry=None)
    world.cut(1, 2, 3)
    world.serve(2)
    preloaded(partial(_staged, world, _STEPS_MAX))
    for step in range(_STEPS_MAX):
        status = forked(partial(_staged, world, step))
        print(abs(status))
        if status >= 0:
            break
    # In a process of threads nothing is forked any more.
    node = world.node()
    node.step()
    world.check(node, 2)
    world.check_all(node)
    assert [ref.version for ref in node.status().staged] == [1, 2, 3]


def _staged(world: World, step: int) -> None:
    world.node(store=_dying(world.store, step)).step()


def _dying(store: Store, step: int) -> SpiedStore:
    found, left = SpiedStore(store), step

    def read(path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    found.on_read = read
    return found


if __name__ == "__main__":
    main(sys.argv[1])
