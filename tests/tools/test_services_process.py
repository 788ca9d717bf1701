"""An owned process: it ends when told and when its owner is gone, whatever ended the owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamlearn.errors import ServiceError
from streamlearn.testing import wait_until
from tools.services.process import OwnedProcess, run_to_end

__all__: list[str] = []

_ROOT = Path(__file__).parents[2]
_SLEEP = ("sleep", "600")
_STUBBORN = ("sh", "-c", "trap '' TERM; echo ready; while true; do sleep 0.05; done")
# SIGINT is made what it is in a terminal: whoever runs this suite in the background has it ignored.
_OWNER = """\
import signal
import sys
from pathlib import Path
from tools.services.process import OwnedProcess
signal.signal(signal.SIGINT, signal.default_int_handler)
process = OwnedProcess("child", sys.argv[2:], Path(sys.argv[1]))
print(process.pid, flush=True)
sys.stdin.read()
"""


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_process_stops_at_sigterm_and_its_status_is_known(tmp_path: Path) -> None:
    process = OwnedProcess("child", _SLEEP, tmp_path)
    assert process.is_alive()
    process.stop()
    assert not process.is_alive()
    assert process.exit_status == -signal.SIGTERM
    assert not _is_there(process.pid)


def test_a_process_that_ignores_sigterm_is_killed_at_the_bound(tmp_path: Path) -> None:
    process = OwnedProcess("child", _STUBBORN, tmp_path, stop_wait_s_max=0.1)
    process.wait_until(lambda: "ready" in process.log.read_text(), 120.0)
    process.stop()
    assert process.exit_status == -signal.SIGKILL
    assert not _is_there(process.pid)


def test_a_paused_process_resumes_and_stops_even_while_paused(tmp_path: Path) -> None:
    process = OwnedProcess("child", _SLEEP, tmp_path)
    process.pause()
    assert _state(process.pid) == "T"
    process.pause()  # a second time changes nothing
    assert process.is_alive()
    process.resume()
    wait_until(lambda: _state(process.pid) == "S", "the process")
    process.pause()
    process.stop()
    assert process.exit_status == -signal.SIGTERM


def test_what_the_process_itself_started_ends_with_it(tmp_path: Path) -> None:
    process = OwnedProcess("child", ["sh", "-c", "sleep 600 & echo $!; wait"], tmp_path)
    wait_until(lambda: process.log.read_text().endswith("\n"), "the process")
    grandchild = int(process.log.read_text())
    process.kill()
    wait_until(lambda: not _is_there(grandchild) or _state(grandchild) == "Z", "the process")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_owner_is_ended_by(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _OWNER, str(tmp_path), *_SLEEP]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=_ROOT
    ) as owner:
        try:
            assert owner.stdout is not None
            pid = int(owner.stdout.readline())
            assert _is_there(pid)
            owner.send_signal(number)
            owner.wait(120)
            wait_until(lambda: not _is_there(pid), "the process")
        finally:
            owner.kill()


def test_a_fork_of_the_owner_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    forking = _OWNER.replace(
        "sys.stdin.read()", "import os\nif os.fork() == 0: print(os.getpid(), flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", forking, str(tmp_path), *_SLEEP]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT) as owner:
        assert owner.stdout is not None
        pid, fork = int(owner.stdout.readline()), int(owner.stdout.readline())
        owner.kill()
        owner.wait(120)
        wait_until(lambda: not _is_there(pid), "the process")
        assert _is_there(fork)
        os.kill(fork, signal.SIGKILL)


def test_a_process_whose_guard_was_killed_is_still_ended(tmp_path: Path) -> None:
    process = OwnedProcess("child", _SLEEP, tmp_path)
    guard_pid = int(Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(guard_pid, signal.SIGKILL)
    process.stop()
    wait_until(lambda: not _is_there(process.pid) or _state(process.pid) == "Z", "the process")


def test_a_failure_carries_the_status_and_the_last_lines_of_the_log(tmp_path: Path) -> None:
    process = OwnedProcess("child", ["sh", "-c", "for i in $(seq 50); do echo line $i; done; exit 7"], tmp_path)
    with pytest.raises(ServiceError) as caught:
        process.wait_until(lambda: False, 120.0)
    assert "status 7" in caught.value.message
    assert "line 50" in caught.value.message
    assert "line 31" in caught.value.message
    assert "line 30" not in caught.value.message
    assert str(process.log) in caught.value.help


def test_a_process_that_does_not_answer_is_refused_at_the_deadline(tmp_path: Path) -> None:
    process = OwnedProcess("child", ["sh", "-c", "echo still warming; exec sleep 600"], tmp_path)
    wait_until(lambda: process.log.stat().st_size > 0, "the process")
    with pytest.raises(ServiceError, match=r"(?s)did not answer within 0.1 s.*still warming"):
        process.wait_until(lambda: False, 0.1)
    process.stop()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="no-such-program"):
        OwnedProcess("child", ["no-such-program"], tmp_path)


def test_a_command_run_to_its_end_fails_with_its_log_and_at_its_bound(tmp_path: Path) -> None:
    run_to_end("fine", ["true"], tmp_path, wait_s_max=120.0)
    with pytest.raises(ServiceError, match=r"(?s)failed with status 3.*no such package"):
        run_to_end("bad", ["sh", "-c", "echo no such package; exit 3"], tmp_path, wait_s_max=120.0)
    with pytest.raises(ServiceError, match=r"longer than 0.1 s"):
        run_to_end("slow", _SLEEP, tmp_path, wait_s_max=0.1)
