"""A model with versions, for tests of the verbs on them; and how a verb ended."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from streamlearn.versions import History, Known, Pointer, PointerLog, Registry, Store, Verdict, write_verdict
from streamlearn.versions.pointer.announcer import Announcer
from streamlearn.versions.pointer.moves import publish
from tests.versions.history import MODEL, Trainer

__all__ = ["APP", "DEADLINE_S", "VERSIONS", "Ended", "Place", "Verb", "commands_in", "refused"]

DEADLINE_S = 300.0
VERSIONS = (1, 2, 4, 5)
APP = """\
import dataclasses
from streamlearn.testing import small_app

app = dataclasses.replace(small_app(), name={name!r})
"""


@dataclass
class Ended:
    """How a verb ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Verb = Callable[..., Ended]


@dataclass
class Place:
    """A model with four versions that passed, of which 5 is served."""

    folder: Path
    store: Store
    registry: Registry
    trainer: Trainer

    @property
    def known(self) -> tuple[Known, ...]:
        return History(self.store, MODEL).read()

    @property
    def pointer(self) -> Pointer:
        return PointerLog(self.store, MODEL).newest()

    def cut(self, version: int, outcome: Any = "passed") -> None:
        self.trainer.learn(version, 50)
        done = self.trainer.cut(version)
        if outcome is not None:
            write_verdict(self.store, done.folder, Verdict(version=done.ref, outcome=outcome))

    def follow(self, *versions: int) -> None:
        """Promote versions as a publisher does."""
        log, announcer = PointerLog(self.store, MODEL), Announcer(self.store, self.registry)
        for version in versions:
            moved = log.move(partial(publish, known=self.known, version=version, run=1), by="publisher")
            assert announcer.moved(moved, "promote")


def commands_in(said: str) -> list[list[str]]:
    """The commands of a text, as a shell would split them."""
    return [shlex.split(found) for found in re.findall(r"`streamlearn ([^`]*)`", said.replace("\n", " "))]


def refused(ended: Ended, status: int, *said: str) -> None:
    assert ended.status == status, ended
    for one in said:
        assert one in ended.err, ended.err
