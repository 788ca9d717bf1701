"""A benchmark that is killed leaves no job behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from streamlearn.testing import wait_until

_CHILD = """\
import subprocess, sys, time
from benchmarks.streams.ingest_orphan import end_with_parent
end_with_parent()
own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(own.pid, flush=True)
time.sleep(600)
"""
_PARENT = f"""\
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {_CHILD!r}], stdout=subprocess.PIPE, text=True, start_new_session=True)
print(child.pid, child.stdout.readline().strip(), flush=True)
child.wait()
"""


def test_what_a_benchmark_started_ends_when_it_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        started = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(started) == 2
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, started)), "the job and what it started have ended")


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
