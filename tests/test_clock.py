"""The machine's clock."""

from __future__ import annotations

import time

from streamlearn.clock import SYSTEM_CLOCK, Clock, SystemClock
from streamlearn.testing import ManualClock


def test_wall_time_is_the_machines_in_milliseconds() -> None:
    before = time.time()
    found = SYSTEM_CLOCK.wall_ms()
    assert int(before * 1000) - 1 <= found <= time.time() * 1000 + 1


def test_monotonic_time_passes_while_sleeping() -> None:
    before = SYSTEM_CLOCK.monotonic_s()
    SYSTEM_CLOCK.sleep(0.002)
    assert SYSTEM_CLOCK.monotonic_s() - before >= 0.002


def test_both_clocks_are_clocks() -> None:
    clocks: list[Clock] = [SystemClock(), ManualClock()]
    for clock in clocks:
        assert clock.wall_ms() > 0
        assert clock.monotonic_s() >= 0
