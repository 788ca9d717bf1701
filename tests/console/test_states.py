"""Six states of a model on the page in a real browser, on a wide screen and on a phone: what each says."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from streamlearn.apps import AppFolder
from streamlearn.console import ConsoleServer, Gathered
from streamlearn.settings import Settings
from streamlearn.testing import small_app, wait_until
from streamlearn.versions import Finding, Known, Node, Pointer, Requests, Verdict, write_verdict
from streamlearn.versions.pointer import moves as decisions
from streamlearn.versions.pointer.model import Model
from tests.cli.place import Place
from tests.console.asked import TOKEN
from tests.console.conftest import DEADLINE_S, FAST, made
from tests.versions.history import MODEL
from tools.services import Browser, Chromium

_WIDTHS = (1280, 390)
EMPTY = Gathered(model=MODEL, at_ms=0, pointer=Pointer())
_CHECK = Finding(check="auc", is_ok=False, said="AUC 0.6100 is 0.0950 below that of version 5")


@dataclass
class Stage:
    """A console that shows what `play` returns, of the versions in a store, and a browser that looks at it."""

    place: Place
    url: str
    browser: Browser
    folder: Path
    gathered: Gathered = EMPTY

    def show(self, name: str, play: Callable[[int], Gathered], said: str) -> None:
        """Look at a state on each width; keep its pictures; nothing may hang over the edge."""
        # All at one time, so that the page is not drawn again while a button is pressed.
        self.gathered = play(time.time_ns() // 1_000_000)
        self.browser.visit(self.url)
        for width in _WIDTHS:
            self.browser.resize(width=width, height=900, deviceScaleFactor=1, mobile=False)
            self.see("#said", said)
            self.see("#one", "Findings of the judge", "file")
            over = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert self.browser.run(over) <= 0, f"{name} at {width} px hangs over the edge"
            assert self.cut() == [], f"{name} at {width} px"
            height = self.browser.run("return document.documentElement.scrollHeight")
            self.browser.resize(width=width, height=height, deviceScaleFactor=1, mobile=False)
            (self.folder / f"{name}-{width}.png").write_bytes(base64.b64decode(self.browser.screenshot()))

    def see(self, selector: str, *words: str) -> str:
        """Wait until people see some words."""
        seen = wait_until(
            lambda: (text := self.browser.text(selector)) and all(word in text for word in words) and text,
            f"{words} in {selector}",
            DEADLINE_S,
        )
        return str(seen)

    def cut(self) -> list[str]:
        """Texts of tiles and buttons that are cut off."""
        script = """return [...document.querySelectorAll('.tile dd, button, td, .trouble span')].filter((one) =>
            one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0 && getComputedStyle(one).display !== 'inline')
            .map((one) => one.innerText)"""
        return list(self.browser.run(script))

    def classes(self, selector: str) -> list[str]:
        """The classes of an element."""
        return str(self.browser.run("return document.querySelector(arguments[0]).className", selector)).split()

    def button(self, move: str) -> str:
        """Whether a main button is there, and may be pressed."""
        script = "return document.querySelector(arguments[0])?.disabled"
        disabled = self.browser.run(script, f'[data-key="main-{move}"]')
        return "none" if disabled is None else "disabled" if disabled else "enabled"


@pytest.fixture(scope="module")
def stage(chromium: Chromium, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("states")
    app = AppFolder(small_app(), folder, Settings())
    with made(folder) as place, pytest.MonkeyPatch.context() as patch, chromium.open() as browser:
        place.trainer.learn(6, 50)
        done = place.trainer.cut(6)
        write_verdict(place.store, done.folder, Verdict(version=done.ref, outcome="rejected", findings=(_CHECK,)))
        found = Stage(place, "", browser, folder)

        class Player:
            def __init__(self, *given: object, **more: object) -> None:
                del given, more

            def gather(self) -> Gathered:
                return found.gathered

        patch.setattr("streamlearn.console.server.Gatherer", Player)
        model = Model(MODEL, str(folder / "store"), f"sqlite://{folder}/registry.db", Settings(console=FAST))
        with ConsoleServer(model, FAST, token=TOKEN, first_window=app.first_window) as server:
            found.url = server.url
            yield found


def known(stage: Stage, now_ms: int, newest: int, age_s: int, **of_newest: Any) -> tuple[Known, ...]:
    """The versions up to the newest, which is so old, a minute apart."""
    found = [entry for entry in stage.place.known if entry.version <= newest]
    aged = []
    for entry in found:
        written_ms = now_ms - age_s * 1_000 - (newest - entry.version) * 60_000
        counts = {"samples": entry.version * 9_000.0, "labels_learned": entry.version * 2_500.0}
        changed: dict[str, Any] = {
            "written_wall_ms": written_ms, "watermark_ms": written_ms - 3_000,
            "metrics": counts | {"auc": 0.69 + entry.version / 500}, "outcome": "passed",
        }  # fmt: skip
        aged.append(structs.replace(entry, **(changed | (of_newest if entry is found[-1] else {}))))
    return tuple(aged)


def moved(stage: Stage, seq: int, active: int, wall_ms: int) -> Pointer:
    ref = next(entry.ref for entry in stage.place.known if entry.version == active)
    return Pointer(seq=seq, active=ref, by="publisher", wall_ms=wall_ms, newest=active)


def node(name: str, pointer: Pointer, now_ms: int, **changed: Any) -> Node:
    facts: dict[str, Any] = {"state": "ready", "staged": (pointer.active_version,), "wall_ms": now_ms - 800}
    return Node(boot_id=name, name=name, seq=pointer.seq, active=pointer.active_version, **(facts | changed))


def well(stage: Stage, now_ms: int, newest: int = 5, age_s: int = 20, **of_newest: Any) -> Gathered:
    """Version 5 is served by two nodes, soon after it was written."""
    versions = known(stage, now_ms, newest, age_s, **of_newest)
    moves = tuple(
        moved(stage, seq, entry.version, entry.written_wall_ms + 5_000)
        for seq, entry in enumerate(versions, 1)
        if entry.version <= 5
    )
    pointer = moves[-1]
    nodes = (node("node-1:8001", pointer, now_ms), node("node-2:8001", pointer, now_ms))
    return Gathered(
        model=MODEL, at_ms=now_ms, pointer=pointer, known=versions, moves=moves, nodes=nodes, known_ms=now_ms
    )


def changed(found: Gathered, **facts: Any) -> Gathered:
    return Gathered(**(vars(found) | facts))


def test_a_young_model_has_a_figure_and_says_when_the_first_window_closes(stage: Stage) -> None:
    def play(now_ms: int) -> Gathered:
        found = well(stage, now_ms)
        young = [structs.replace(entry, metrics={"samples": 90.0, "labels_learned": 40.0}) for entry in found.known]
        return changed(found, known=tuple(young))

    stage.show("young", play, "Version 5 is served, by all 2 nodes")
    assert stage.browser.run("return [...document.querySelector('#figure').options].map((one) => one.text)") == [
        "labels learned", "samples", "rows set", "bytes",
    ]  # fmt: skip
    assert "No AUC yet: the first window closes once samples are complete up to about" in stage.browser.text("#window")
    assert "no AUC yet" in stage.browser.text("#tiles")
    assert "no version" not in stage.browser.text("#chart")
    assert stage.browser.run("return document.querySelectorAll('#chart .trend, #chart .grid').length") == 2


def test_a_model_that_is_well_is_green_and_shows_its_auc(stage: Stage) -> None:
    stage.show("well", lambda now_ms: well(stage, now_ms), "Version 5 is served, by all 2 nodes")
    assert stage.classes("#headline") == ["headline", "good"]
    assert stage.browser.run("return document.querySelector('#figure').value") == "auc"
    assert stage.browser.text("#window") == ""
    assert stage.browser.text("#trouble") == ""
    for absent in ("#features", "#workers-panel"):
        assert stage.browser.run("return document.querySelector(arguments[0]).offsetHeight", absent) == 0
    assert stage.browser.run("return document.querySelectorAll('.mark, .mild, .wrong').length") == 0
    assert [stage.button(move) for move in ("hold", "release", "rewind", "rollback")] == [
        "enabled", "none", "enabled", "enabled",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"behind": 1, "newest_ms": 1_700_000_000_000}, " in STORE: 1 message LEFT, NEWEST is of 2023-11-14 22:13:20"),
        ({"behind": 12_000}, " in STORE: 12,000 messages LEFT, none is folded yet"),
        ({"newest_ms": 1 << 62}, " in STORE: 0 messages LEFT, NEWEST is of 4611686018427388000 ms"),
        ({"error": "the feature states at STORE do not answer"}, ": the feature states at STORE do not answer"),
    ],
    ids=["folded", "begun", "a wrong clock", "away"],
)
def test_a_line_says_how_far_computed_features_are_folded(stage: Stage, facts: dict[str, Any], line: str) -> None:
    store = f"redis://{'a-long-name.' * 9}example:6379/0"
    shown = {"store": store, "error": "", "behind": 0, "newest_ms": 0} | facts
    shown["error"] = str(shown["error"]).replace("STORE", store)
    stage.show(
        "features", lambda now_ms: changed(well(stage, now_ms), features=shown), "Version 5 is served, by all 2 nodes"
    )
    words = {"STORE": store, "LEFT": "of interactions left to fold", "NEWEST": "the newest folded interaction"}
    for name, text in words.items():
        line = line.replace(name, text)
    assert stage.browser.text("#features") == f"Computed features{line}"


def test_workers_are_shown_with_their_slices_and_since_when_one_is_missing(stage: Stage) -> None:
    def play(now_ms: int) -> Gathered:
        members = [
            {"name": "leader", "slices": 12_345, "slice_s": 0.0123, "held": 2},
            {"name": f"{'a-long-name.' * 6}example:4711", "slices": 0, "slice_s": 0.0, "held": 1},
        ]
        facts = {"error": "", "help": "", "asked_ms": now_ms - 1_000, "wanted": 3, "short_since_ms": now_ms - 2_400_000}
        return changed(well(stage, now_ms), workers=facts | {"members": members})

    stage.show("workers", play, "Version 5 is served, by all 2 nodes")
    assert stage.classes("#headline") == ["headline", "warn"]
    table = stage.browser.text("#workers")
    for words in ("leader, the trainer", "12,345", "12.3 ms", "2 slices", "example:4711", "1 slice"):
        assert words in table, words
    text = stage.browser.text("#workers-said")
    assert "2 of 3 learn, at least one has been missing for 40 min" in text
    assert "; asked " in text
    assert "1 of 3 processes that learn is missing" in stage.browser.text("#trouble")


def test_a_trainer_that_does_not_answer_leaves_no_old_figures_of_workers(stage: Stage) -> None:
    def play(now_ms: int) -> Gathered:
        unknown = {"asked_ms": 0, "wanted": 0, "short_since_ms": 0, "members": []}
        facts = {"error": "the trainer at host:7302 does not answer", "help": "see `streamlearn up --help`"}
        return changed(well(stage, now_ms), workers=facts | unknown)

    stage.show("workers-unknown", play, "Version 5 is served, by all 2 nodes")
    assert stage.classes("#headline") == ["headline", "good"]
    error = "Workers are unknown: the trainer at host:7302 does not answer; see streamlearn up --help"
    assert (stage.browser.text("#workers"), stage.browser.text("#workers-said")) == (error, "")


def test_after_a_rollback_the_page_leads_out_by_a_rewind_and_makes_it(stage: Stage) -> None:
    def play(now_ms: int) -> Gathered:
        found = well(stage, now_ms)
        held = decisions.rollback(found.pointer, found.known, 4)
        held = structs.replace(held, by="anna (console)", reason="clicks fell", wall_ms=now_ms - 9_000)
        nodes = (node("node-1:8001", held, now_ms), node("node-2:8001", held, now_ms))
        return changed(found, pointer=held, moves=(*found.moves, held), nodes=nodes)

    stage.show("held", play, "Version 4 is served and held, by all 2 nodes")
    trouble = stage.browser.text("#trouble")
    assert "`" not in trouble
    assert "streamlearn rewind ctr --to 4 takes training back" in trouble
    assert "then streamlearn release ctr" in trouble
    assert "Held by anna (console) since 20" in trouble
    assert "UTC: clicks fell" in trouble
    assert "a release is refused until a newer version is clean" in trouble
    assert [stage.button(move) for move in ("hold", "release", "rewind", "rollback")] == [
        "none", "disabled", "enabled", "enabled",
    ]  # fmt: skip
    stage.browser.click('[data-key="main-rewind"]')
    stage.see("#dialog", "Rewind training?", "Version to go back to")
    assert stage.browser.run("return [...document.querySelector('#to').options].map((one) => one.value)") == [
        "4", "2", "1",
    ]  # fmt: skip
    (stage.folder / "dialog.png").write_bytes(base64.b64decode(stage.browser.screenshot()))
    stage.browser.type("#skip-from", "12:20")
    stage.browser.type("#reason", "prices were wrong")
    stage.browser.type("#secret", f"{TOKEN.decode()}\ue007")
    stage.see("#outcome", "'12:20..' is not a valid range", "such as 12:20..12:25")
    stage.browser.type("#skip-to", "12:25\ue007")
    stage.see("#dialog", "Training goes back to version 4", "request 1", "at its next cut", "skipped: impressions of")
    (stage.folder / "asked.png").write_bytes(base64.b64decode(stage.browser.screenshot()))
    (asked,) = Requests(stage.place.store, MODEL).waiting(stage.place.known)
    assert (asked.to.version, asked.reason, asked.by) == (4, "prices were wrong", "console")
    assert len(asked.skips) == 1
    stage.browser.click("#cancel")


def test_a_late_heartbeat_is_amber_and_a_silent_node_red(stage: Stage) -> None:
    def play(now_ms: int) -> Gathered:
        found = well(stage, now_ms)
        # Ages go on counting while the page is looked at, which takes a loaded machine some time.
        late = structs.replace(found.nodes[0], wall_ms=now_ms - 7_200_000)
        silent = structs.replace(found.nodes[1], wall_ms=now_ms - 10_800_000)
        return changed(found, nodes=(late,), gone=(silent,))

    stage.show("silent", play, "Version 5 is served, by 1 of 2 nodes")
    assert stage.classes("#headline") == ["headline", "bad"]
    assert "2 h ago, late" in stage.browser.text("#nodes .mild")
    assert "3 h ago, silent" in stage.browser.text("#nodes .wrong")
    trouble = stage.browser.text("#trouble")
    assert "node-2:8001 sends no heartbeat" in trouble
    assert "the heartbeat of node-1:8001 is late" in trouble
    assert "1 node silent, 1 heartbeat late" in stage.browser.text(".tile.late")
    assert stage.browser.run("return document.querySelector('.tile.late .mark').getAttribute('aria-label')") == "late"


def test_a_rejected_version_says_why_and_what_to_do(stage: Stage) -> None:
    def play(now_ms: int) -> Gathered:
        return well(stage, now_ms, newest=6, age_s=130, outcome="rejected")

    stage.show("rejected", play, "Version 5 is served, by all 2 nodes")
    assert stage.classes("#headline") == ["headline", "warn"]
    trouble = stage.browser.text("#trouble")
    assert "version 6 is tainted, and not followed: the judge rejected 6" in trouble
    assert "streamlearn rewind ctr --to 5 takes training back" in trouble
    assert "release" not in trouble
    stage.browser.click('[data-key="v6"]')
    stage.see("#one", "Version 6", "rejected", "AUC 0.6100 is 0.0950 below that of version 5", "Accept 6 and serve it")
    assert "old, late; one after the served one" in stage.browser.text(".tile.late")
    assert stage.browser.run("return document.querySelector('#one .refused').getAttribute('aria-label')") == "refused"


def test_without_its_registry_the_page_says_since_when_and_still_moves(stage: Stage) -> None:
    def play(now_ms: int) -> Gathered:
        away = "redis://10.0.0.7:6379/0 does not answer: Connection refused"
        return changed(well(stage, now_ms), nodes=(), registry=away, known_ms=now_ms - 65_000)

    stage.show("registry", play, "The pointer names version 5; nodes are unknown")
    assert stage.classes("#headline") == ["headline", "bad"]
    trouble = stage.browser.text("#trouble")
    assert "Connection refused" in trouble
    assert "1 min" in trouble
    assert "unknown" in stage.browser.text(".tile.late")
    assert stage.button("rollback") == "enabled"
