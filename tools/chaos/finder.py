"""Finder: asks nodes for items during a run, and holds what they found against the files of its version."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import ServiceError, StreamlearnError
from streamlearn.versions import Store
from tools.chaos.answer_log import AnswerLog
from tools.demo import Loop
from tools.demo.found_items import FoundItems, VersionItems, find, retrieval_of, user_of

__all__ = ["Finder", "finding_copy"]

_APP = """
import runpy
from dataclasses import replace
from pathlib import Path

from streamlearn.features import Library, Retrieval

plain = runpy.run_path(str(Path(__file__).with_name("plain_app.py")))["app"]
app = replace(plain, retrieval={retrieval!r})
"""
_EVERY_S, _OF_VERSION_MAX, _K_MAX, _USERS = 0.2, 8, 50, 1_000
_KNOWN_MAX, _WATCHED_MAX, _EXCLUDED_MAX = 200, 20, 30


def finding_copy(example: Path, place: Path) -> Path:
    """Copy an application, without its data, and let the copy declare retrieval; return its folder."""
    folder = place / "finding"
    shutil.copytree(example, folder, ignore=shutil.ignore_patterns("data", "__pycache__", ".*"))
    (folder / "app.py").rename(folder / "plain_app.py")
    (folder / "app.py").write_text(_APP.format(retrieval=retrieval_of(load_app(example).app)))
    return folder


class Finder:
    """Asks the nodes of a loop in turn, from its construction until it is closed.

    Answers that come while `pause.is_paused` are left out: another application gives them.

    Attributes:
        ids: By version, all ids that were found.
        lists: By version, some lists.
    """

    def __init__(self, loop: Loop, folder: AppFolder, pause: AnswerLog, seed: int) -> None:
        self._loop, self._app, self._pause, self._chance = loop, folder.app, pause, random.Random(seed)
        self.ids: dict[int, set[Any]] = {}
        self.lists: dict[int, list[FoundItems]] = {}
        self._known: list[Any] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-finder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._over.set()
        self._thread.join()

    def violations(self, store: Store) -> Iterator[str]:
        """Yield each list that is not what its version says; and that there is none, if so."""
        for version, ids in sorted(self.ids.items()):
            try:
                items = VersionItems(self._app, store, version)
                if unknown := ids - {*items.ids}:
                    yield f"version {version} has no item {sorted(unknown)[0]}, which a node found"
                wrong = filter(None, map(items.wrong, self.lists[version]))
                yield from (f"a node found other items than a scan: {text}" for text in wrong)
            except StreamlearnError as error:
                yield f"version {version}, whose items a node found: {error.message}"
        if not any(self.ids.values()):
            yield "no node found an item"

    def _run(self) -> None:
        number = 0
        while not self._over.wait(_EVERY_S):
            number += 1
            address = self._loop.http[number % len(self._loop.http)]
            watched, exclude = self._some(_WATCHED_MAX), self._some(_EXCLUDED_MAX)
            user, k = user_of(self._app, self._chance.randrange(_USERS), watched), self._chance.randint(1, _K_MAX)
            was_paused = self._pause.is_paused
            try:
                found = find(address, user, k, exclude, self._loop.token)
            except ServiceError:  # a fault hit the node
                continue
            if was_paused or self._pause.is_paused:
                continue
            self.ids.setdefault(found.version, set()).update(found.ids)
            lists = self.lists.setdefault(found.version, [])
            if len(lists) < _OF_VERSION_MAX:
                lists.append(found)
            self._known = [*{*self._known[-_KNOWN_MAX:], *found.ids}]

    def _some(self, most: int) -> list[Any]:
        return self._chance.sample(self._known, min(len(self._known), self._chance.randrange(most)))
