"""FileWatch: each change of a content is news once, and only contents count."""

from __future__ import annotations

import os
from pathlib import Path

from streamlearn.supervision.file_watch import FileWatch
from streamlearn.testing import ManualClock

__all__: list[str] = []


def test_each_change_of_a_content_is_news_once(tmp_path: Path) -> None:
    clock, app, settings = ManualClock(), tmp_path / "app.py", tmp_path / "app.toml"
    app.write_text("one")
    watch = FileWatch([app, settings], clock)

    def news() -> list[Path] | None:
        clock.sleep(1)
        return watch.news()

    assert news() is None
    os.utime(app, (1, 1))  # a copy of the same content
    assert news() is None
    settings.write_text("")
    assert news() is None  # as good as none
    settings.write_text("[up]")
    app.write_text("two")
    assert news() == [app, settings]
    assert news() is None
    app.write_text("one")
    assert news() == [settings]
    settings.unlink()
    assert news() == []
    assert news() is None


def test_files_are_looked_at_once_a_second(tmp_path: Path) -> None:
    clock, app = ManualClock(), tmp_path / "app.py"
    watch = FileWatch([app], clock)
    app.write_text("one")
    clock.sleep(0.9)
    assert watch.news() is None
    clock.sleep(0.1)
    assert watch.news() == [app]
