"""The page in a real browser: what an operator sees, clicks and types, and what comes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from streamlearn.testing import wait_until
from streamlearn.versions import Replica
from tests.console.asked import TOKEN
from tests.console.conftest import Console, Opener
from tools.services import Browser, Chromium

DEADLINE_S = 300.0


@pytest.fixture(scope="module")
def opened(chromium: Chromium) -> Iterator[Browser]:
    with chromium.open() as found:
        yield found


@pytest.fixture
def browser(opened: Browser) -> Iterator[Browser]:
    """One browser for all tests: each console is an origin of its own, whose page and storage no other one sees."""
    yield opened
    opened.visit("about:blank")
    opened.resize(width=0, height=0, deviceScaleFactor=0, mobile=False)  # as it was opened
    opened.logged()


def see(browser: Browser, selector: str, *words: str) -> str:
    """Wait until people see some words."""
    seen = wait_until(
        lambda: (text := browser.text(selector)) and all(word in text for word in words) and text,
        f"{words} in {selector}",
        DEADLINE_S,
    )
    return str(seen)


def quiet(browser: Browser) -> None:
    """Nothing was refused, missing or wrong, as far as the browser has said."""
    assert [line for line in browser.logged() if "favicon" not in line] == []


def test_the_page_shows_versions_nodes_and_moves(still: Console, still_nodes: list[Replica], browser: Browser) -> None:
    browser.visit(still.server.url)
    see(browser, "#said", "Version 5 is served, by all 2 nodes")
    assert browser.text("#model") == "ctr"
    see(browser, "#pulse", "live")
    table = see(browser, "#nodes", "node-1", "node-2")
    assert "ready" in table
    for version in (1, 2, 4, 5):
        assert str(version) in browser.text("#versions")
    assert "promoted 1 to 5, in 4 moves" in see(browser, "#log", "promoted")
    assert browser.run("return document.querySelectorAll('#chart .dot').length") == 4
    see(browser, "#one", "Version 5", "passed")
    quiet(browser)


def test_a_rollback_is_made_by_keyboard_and_says_each_nodes_milliseconds(
    console: Console, nodes: list[Replica], browser: Browser
) -> None:
    browser.visit(console.server.url)
    see(browser, "#moves", "Roll back to 4")
    browser.run("document.querySelector('[data-key=\"main-rollback\"]').focus()")
    browser.type('[data-key="main-rollback"]', "\ue007")  # Enter
    see(browser, "#dialog", "Roll back to version 4?", "tainted")
    browser.type("#reason", "clicks fell")
    browser.type("#by", "anna")
    browser.type("#secret", "not the token")
    browser.type("#secret", "\ue007")
    see(browser, "#outcome", "the token is wrong")
    assert console.place.pointer.seq == 4
    browser.type("#secret", f"{TOKEN.decode()}\ue007")
    done = see(browser, "#outcome", "All 2 nodes have acknowledged.", "node-1", "node-2")
    assert done.count(" ms") == 2
    browser.click("#cancel")
    see(browser, "#said", "Version 4 is served and held, by all 2 nodes")
    see(browser, "#log", "rolled back to 4 from 5", "anna (console)", "clicks fell")
    see(browser, "#trouble", "tainted", "held")
    pointer = console.place.pointer
    assert (pointer.held, pointer.reason, pointer.by) == (True, "clicks fell", "anna (console)")
    kept = browser.run("return [location.href, document.cookie, JSON.stringify(localStorage)]")
    assert TOKEN.decode() not in json.dumps(kept), "in no URL, no cookie, and nothing that outlives the tab"


def test_a_version_is_chosen_by_arrow_keys_and_said_to_who_does_not_see(still: Console, browser: Browser) -> None:
    browser.visit(still.server.url)
    see(browser, "#one", "Version 5")
    said = "return document.querySelector('#chart').getAttribute('aria-valuetext')"
    assert "version 5, active" in browser.run(said)
    browser.run("document.querySelector('#chart').focus()")
    browser.type("#chart", "\ue012")  # left
    see(browser, "#one", "Version 4", "Roll back to 4")
    assert "version 4, passed" in browser.run(said)
    browser.type("#chart", "\ue011")  # home
    see(browser, "#one", "Version 1")


def test_a_console_that_may_not_move_says_the_command_that_may(open_still: Opener, browser: Browser) -> None:
    browser.visit(open_still(token=None).server.url)
    see(browser, "#access", "read-only")
    see(browser, "#moves", "streamlearn rollback ctr --to 4")
    assert browser.run("return document.querySelectorAll('#moves button').length") == 0


def test_what_a_store_says_stays_text(console: Console, browser: Browser) -> None:
    told = console.ask.move("hold", {"reason": "<img src=x onerror=document.title='owned'>", "by": "<b>x</b>"})
    assert told.status == 200
    browser.visit(console.server.url)
    see(browser, "#log", "<img src=x", "<b>x</b>")
    assert browser.run("return document.querySelectorAll('#log img, #log b').length") == 0


def test_a_console_that_ends_is_told_on_the_page(open_still: Opener, browser: Browser) -> None:
    console = open_still()
    browser.visit(console.server.url)
    see(browser, "#said", "Version 5")
    console.server.close()
    see(browser, "#pulse", "the console does not answer")


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_hangs_over_the_edge(still: Console, still_nodes: list[Replica], browser: Browser, width: int) -> None:
    frame: dict[str, Any] = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.resize(**frame)
    browser.visit(still.server.url)
    see(browser, "#nodes", "node-1")
    over = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.run("return window.innerWidth") == width
    assert browser.run(over) <= 0


def test_every_control_has_a_name(still: Console, browser: Browser) -> None:
    browser.visit(still.server.url)
    see(browser, "#said", "Version 5")
    nameless = browser.run(
        """return [...document.querySelectorAll('button, input, select, [role=slider], [role=region]')].filter((one) =>
        !one.innerText.trim() && !one.getAttribute('aria-label') && !one.labels?.length).map((one) => one.outerHTML)"""
    )
    assert nameless == []
