"""Pages of the docs as a user follows them: their commands as one shell script."""

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
    """Run commands, check that all succeed, and return their output.

    Args:
        folder: The working folder.
        script: The commands.
        s_max: Time limit, against hanging commands.
        more: Additional environment variables.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **more}
    for name in ("STREAMLEARN_STORE", "STREAMLEARN_REGISTRY"):
        env.pop(name, None)
    log = folder / "log"
    with log.open("w") as out:
        # A separate session, so that all processes can be killed at the end.
        process = subprocess.Popen(
            ["bash", "-eu", "-c", script], cwd=folder, env=env, start_new_session=True, stdout=out,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    status = None
    try:
        with suppress(subprocess.TimeoutExpired):
            status = process.wait(s_max)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    output = log.read_text()
    assert status == 0, output
    return output
