"""A part of the loop is killed and started again where it was, and what it said before counts no more."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.loops.loop_part import LoopPart
from streamlearn.testing import wait_until

__all__: list[str] = []

_APP = Path(__file__).parents[2] / "examples" / "synthetic"
_SAYS = "of synthetic listens at "


def test_a_part_that_is_killed_comes_back_where_it_was_and_is_heard_anew(tmp_path: Path) -> None:
    words = ("streamlearn", "ps", "--app", str(_APP), "--listen", "127.0.0.1:0")
    part = LoopPart("shard", words, tmp_path, (f"versions.store={tmp_path}/versions",))
    try:
        first = part.wait_logged(_SAYS, 300)
        assert re.fullmatch(r"127\.0\.0\.1:\d+", first)
        wait_until(lambda: part.meter('streamlearn_ps_requests_total{what="never"}') == 0, "a sum of no series")
        part.kill()
        assert not part.process.is_alive()
        assert part.meter("streamlearn_ps_rows") is None
        killed = part.process.pid
        part.restart()
        assert part.process.pid != killed
        part.wait_logged(_SAYS, 300)
        # Both lives are in one log, and the second alone is listened to.
        assert part.process.log.read_text().count(_SAYS) == 2
        assert part.logged("nothing like that") is None
    finally:
        part.close()
    assert not part.process.is_alive()
