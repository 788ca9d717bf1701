"""The page on rollbacks: its programs and its commands are run as they stand, in order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_S_MAX = 300  # it only ends what hangs


def test_a_newcomer_gets_through_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operating" / "rollback.md").read_text()
    trainer, node = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    shell = re.findall(r"^```sh\n(.*?)^```", page, flags=re.M | re.S)
    assert len(shell) == 10
    (tmp_path / "trainer.py").write_text(trainer)
    (tmp_path / "node.py").write_text(node)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    for name in ("STREAMLEARN_STORE", "STREAMLEARN_REGISTRY"):
        env.pop(name, None)
    log = tmp_path / "log"
    with log.open("w") as out:
        # A session of its own, so that nothing it started outlives it.
        walk = subprocess.Popen(
            ["bash", "-eu", "-c", "".join(shell)], cwd=tmp_path, env=env, start_new_session=True,
            stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    ended = None
    try:
        with suppress(subprocess.TimeoutExpired):
            ended = walk.wait(_S_MAX)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(walk.pid, signal.SIGKILL)
        walk.wait()
    said = log.read_text()
    assert ended == 0, said
    assert len(re.findall(r"^node-[12] +acted", said, flags=re.M)) == 14, said
    assert "exit status 1" in said
    assert "a base of" in said
