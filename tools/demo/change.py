"""Change: a changed application beside a running loop. It takes over the callers of the loop, and gives them back."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins

from streamlearn.apps import AppFolder, load_app
from streamlearn.load.load_run import Load
from streamlearn.serving.infer import InferAnswer
from streamlearn.settings import Settings
from tools.demo.found_items import retrieval_of
from tools.demo.loop import Loop, run_verb
from tools.demo.new_item import Item, NewItem, see_new_item, write_items

__all__ = ["Change", "Takeover", "take_over"]

# As a user would do it: one more feature, which no event has yet, and perhaps retrieval.
_APP = """
import runpy
from dataclasses import replace
from pathlib import Path

from streamlearn.features import Library, Retrieval, Slot

old = runpy.run_path(str(Path(__file__).with_name("was_app.py")))["app"]
added = Slot({added!r}, "item", table={added!r}, dim=old.features.slots[0].dim, initial_range=0.0, default=0)
features = replace(old.features, slots=(*old.features.slots, added))
app = replace(old, name={name!r}, serves=old.served_name, features=features, retrieval={retrieval!r})
"""
_ADDED = "weather"
_SCHEMAS = ("impression", "action")
_PARTITIONS, _SHARDS = "4", 1
_ANSWER_S_MAX, _ROUNDS_MIN, _WAIT_S_MAX = 20.0, 3, 60.0


@dataclass(frozen=True)
class Takeover:
    """What was seen while callers were moved to another application and back.

    Attributes:
        kept: Rows that the changed application began with.
        moved_ms: How long each switch took until all nodes had followed.
        requests: Requests sent meanwhile.
        unanswered: Those without an answer.
        refusal: Why one of them has none.
        answered: Those that the changed application answered.
        difference: The largest difference of its scores from those of the application that it replaces.
        new_item: What its nodes found meanwhile; None without retrieval.
    """

    kept: int = 0
    moved_ms: tuple[float, ...] = ()
    requests: int = 0
    unanswered: int = 0
    refusal: str = ""
    answered: int = 0
    difference: float = 0.0
    new_item: NewItem | None = None


class Change:
    """A copy of an application with one more slot, which begins with what a loop has learned and runs beside it.

    The constructor waits until its nodes stand ready.

    Args:
        loop: The loop.
        folder: Its application, with the settings that it runs with.
        place: A folder for the changed application.
        name: The name of the changed application.
        items: If there are any, it declares retrieval, too, and finds these items.

    Attributes:
        name: Its name.
        loop: Its processes.
        kept: Rows that it began with.
        items: The items, with all features of its own.
    """

    def __init__(self, loop: Loop, folder: AppFolder, place: Path, name: str, items: Sequence[Item] = ()) -> None:
        old, new = place / "old", place / "new"
        self.name = name
        for copy in (old, new):
            ignored = shutil.ignore_patterns("data", "__pycache__", ".*")
            shutil.copytree(folder.folder, copy, ignore=ignored)
            (copy / "app.toml").write_text(_toml(folder.settings))
        (new / "app.py").rename(new / "was_app.py")
        retrieval = retrieval_of(folder.app) if items else folder.app.retrieval
        (new / "app.py").write_text(_APP.format(name=self.name, added=_ADDED, retrieval=retrieval))
        run_verb("schema", str(old), "--out", str(new / "was"), is_json=False)
        schemas = json.dumps([f"was/{schema}.avsc" for schema in _SCHEMAS])
        settings = (new / "app.toml").read_text().replace("[topics]\n", f"[topics]\nold_schemas = {schemas}\n")
        (new / "app.toml").write_text(settings)
        self._new = new
        run_verb("topics", str(new), "--create", _PARTITIONS)
        written = run_verb("migrate", str(new), "--from", str(old))
        self.kept = sum(written["rows"].values())
        # Envoy follows the sockets, which both applications share. The trainer of the new one learns alone.
        own = ("access.listen=", "up.workers=0", "workers.listen=[]")
        changed = load_app(new, own)
        self.items = [(item, {**features, _ADDED: 0}) for item, features in items]
        if items:
            write_items(changed, self.items)
        self.loop = Loop(changed, own, place, len(loop.nodes), _SHARDS, beside=folder.folder)
        try:
            self.loop.wait_up()
        except BaseException:
            self.loop.close()
            raise

    def switch(self, to: str) -> float:
        """Move the callers, and return the milliseconds until all nodes had followed."""
        nodes = run_verb("switch", str(self._new), "--to", to)["nodes"]
        return float(max(node["followed_ms"] for node in nodes))

    def close(self) -> None:
        """End the changed application."""
        try:
            run_verb("switch", str(self._new), "--done")
        finally:
            self.loop.close()


class _Callers:
    """Sends requests to nodes without a pause, from its construction until it is closed.

    Attributes:
        requests: Requests so far.
        unanswered: Those without an answer.
        refusal: Why one of them has none.
        answered: Answers by version.
        answers: By version, the last scores of the first label for each request.
    """

    def __init__(self, nodes: Sequence[str], messages: Sequence[bytes]) -> None:
        self._nodes, self._messages = nodes, list(messages)
        self.requests = self.unanswered = self.rounds = 0
        self.refusal = ""
        self.answered: Counter[int] = Counter()
        self.answers: dict[int, dict[int, Any]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._call, name="demo-callers", daemon=True)
        self._thread.start()

    def _call(self) -> None:
        loads = [Load(node, connections=1) for node in self._nodes]
        while not self._over.is_set():
            for load in loads:
                for at, answer in enumerate(load.ask_all(self._messages, _ANSWER_S_MAX)):
                    self.requests += 1
                    if answer is None:
                        self.unanswered += 1
                        self.refusal = load.refusal
                        continue
                    decoded = InferAnswer.decode(answer)
                    scores = next(iter(decoded.outputs.values())).numbers
                    self.answered[int(decoded.version)] += 1
                    self.answers.setdefault(int(decoded.version), {})[at] = np.array(scores)
            self.rounds += 1

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def take_over(loop: Loop, folder: AppFolder, place: Path, messages: Sequence[bytes], items: Sequence[Item]) -> Takeover:
    """Move the callers of a loop that learns nothing more to a changed application, and back.

    Args:
        loop: The loop.
        folder: Its application, with the settings that it runs with.
        place: A folder for the changed application.
        messages: Requests that are sent meanwhile.
        items: If there are any, the changed application finds them, and one more that is written meanwhile.
    """
    with (
        closing(Change(loop, folder, place, f"{folder.app.name}_next", items)) as change,
        closing(_Callers(loop.doors, messages)) as callers,
    ):
        moved_ms, new_item = [], None

        def asked() -> None:
            until = callers.rounds + _ROUNDS_MIN
            loop.wait(lambda: callers.rounds >= until, "requests to be answered", _WAIT_S_MAX)

        for to in (change.name, folder.app.name):
            asked()
            moved_ms.append(change.switch(to))
            if to == change.name and items:
                new_item = see_new_item(change.loop, change.items)
        asked()
        before = set(loop.served())
    own = {at: scores for version in before for at, scores in callers.answers.get(version, {}).items()}
    others = [
        (at, scores)
        for version, some in callers.answers.items()
        if version not in before
        for at, scores in some.items()
    ]
    return Takeover(
        kept=change.kept,
        moved_ms=tuple(moved_ms),
        requests=callers.requests,
        unanswered=callers.unanswered,
        refusal=callers.refusal,
        answered=sum(count for version, count in callers.answered.items() if version not in before),
        new_item=new_item,
        difference=max((float(np.abs(scores - own[at]).max()) for at, scores in others), default=float("nan")),
    )


def _toml(settings: Settings) -> str:
    """Return the settings that differ from the defaults, as a TOML file that begins with topics."""
    given, default = to_builtins(settings), to_builtins(Settings())
    sections = []
    for section in ("topics", *(name for name in given if name != "topics")):
        values = given[section].items()
        lines = [f"{name} = {_value(value)}" for name, value in values if value != default[section][name]]
        sections += [f"[{section}]", *lines, ""]
    return "\n".join(sections)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_value(one)}" for name, one in value.items()) + "}"
    return json.dumps(value)
