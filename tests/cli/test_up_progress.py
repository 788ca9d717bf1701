"""The table of `streamlearn up`: what matters is whole where there is little room, and words are only words."""

from __future__ import annotations

import io

from rich.console import Console

from streamlearn.cli.run.up import members_table
from streamlearn.settings.up import UpSettings
from streamlearn.supervision import Member, Seen
from streamlearn.supervision.course import Course
from streamlearn.testing import ManualClock


def test_states_are_whole_in_a_narrow_terminal_and_words_are_no_markup() -> None:
    where = {"grpc": "127.0.0.1:8001", "http": "127.0.0.1:8000", "metrics": "127.0.0.1:9101"}
    course = Course([Member("node-1", 2, ("serve",), where=where)], UpSettings(), ManualClock())
    course.orders()
    course.ended("node-1", 1)
    seen = Seen(course.standing("node-1"), 4_194_304, 65.0, "[red]it [/] says")
    for width in (80, 160):
        out = io.StringIO()
        Console(file=out, width=width).print(members_table([seen]))
        head, line = out.getvalue().splitlines()
        assert head.split()[:4] == ["process", "pid", "for", "restarts"]
        assert line.split()[:6] == ["node-1", "waiting", "4194304", "1", "min", "1"]
    assert "grpc 127.0.0.1:8001 http 127.0.0.1:8000" in line
    assert "[red]it [/] says" in line
    assert "9101" not in line
