"""Progress where there is no terminal: a line every few seconds, and no control characters."""

from __future__ import annotations

import pytest

from streamlearn.cli.events.replay import line_progress
from streamlearn.cli.output.progress import LINE_S
from streamlearn.replay.replayer import ReplayProgress

__all__: list[str] = []


def test_a_line_is_written_every_few_seconds_with_what_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = [0.0]
    show = line_progress(4_000, lambda: now_s[0])
    for step in range(21):  # 10 s, two times a second
        now_s[0] = step * LINE_S / 10
        show(ReplayProgress(100 * step, 1_650_813_408_456 + 1_000 * step, max(0.5 * step, 0.1)))
    assert capsys.readouterr().err.splitlines() == [
        "2022-04-24 15:16:58  1,000 of 4,000 events  200 events/s",
        "2022-04-24 15:17:08  2,000 of 4,000 events  200 events/s",
    ]
