"""Pages of the docs as a newcomer goes through them: their commands as one program of the shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["ROOT", "walk"]

ROOT = Path(__file__).parent.parent


def walk(folder: Path, script: str, *, s_max: int, **more: str) -> str:
    """What the commands said, all of which went well.

    Args:
        folder: Where they are run.
        script: The commands.
        s_max: It only ends what hangs.
        more: More of their environment.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **more}
    for name in ("STREAMLEARN_STORE", "STREAMLEARN_REGISTRY"):
        env.pop(name, None)
    log = folder / "log"
    with log.open("w") as out:
        # A session of its own, so that nothing it started outlives it.
        walked = subprocess.Popen(
            ["bash", "-eu", "-c", script], cwd=folder, env=env, start_new_session=True, stdout=out,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    ended = None
    try:
        with suppress(subprocess.TimeoutExpired):
            ended = walked.wait(s_max)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(walked.pid, signal.SIGKILL)
        walked.wait()
    said = log.read_text()
    assert ended == 0, said
    return said
