"""The machine's browser: found, driven, closed; and what is said where it is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlearn.errors import ServiceError
from tools.services import Cache, Chromium


def test_a_page_is_loaded_and_asked(chromium: Chromium) -> None:
    with chromium.open(width=700, height=500) as browser:
        browser.visit("data:text/html,<title>a</title><p id=p>words</p><input id=i>")
        assert browser.text("#p") == "words"
        assert browser.text("#nothing") == ""
        browser.type("#i", "typed")
        assert browser.run("return [document.title, document.querySelector('#i').value]") == ["a", "typed"]
        with pytest.raises(ServiceError, match="no such element"):
            browser.click("#nothing")


def test_browsers_share_nothing(chromium: Chromium) -> None:
    with chromium.open() as one, chromium.open(dark=True) as other:
        dark = "return matchMedia('(prefers-color-scheme: dark)').matches"
        assert (one.run(dark), other.run(dark)) == (False, True)


def test_where_it_is_missing_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Chromium.find(Cache(tmp_path)) is None
    with pytest.raises(ServiceError, match="no chromium on PATH") as caught:
        Chromium.fetch(Cache(tmp_path))
    assert ".ci/bootstrap" in caught.value.help
