"""A process's pulse: what is said, when, and that nothing comes of nobody listening."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamlearn.cli.main import cli
from streamlearn.errors import UsageError
from streamlearn.pulse import Pulse
from streamlearn.testing import ManualClock
from tests.listener import Listener

_SILENCE_S = 12.0


@pytest.fixture(params=["path", "abstract"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Listener, dict[str, str]]]:
    place = str(tmp_path / "notify") if request.param == "path" else f"@streamlearn-{tmp_path}"
    listener = Listener(place.replace("@", "\0", 1))
    with listener.socket:
        yield listener, {"NOTIFY_SOCKET": place, "WATCHDOG_USEC": str(round(_SILENCE_S * 1e6))}


def test_it_says_that_it_is_ready_then_that_it_works_and_then_that_it_ends(
    listening: tuple[Listener, dict[str, str]],
) -> None:
    (listener, environ), clock = listening, ManualClock()
    pulse = Pulse(environ, clock)
    pulse.beat()
    assert listener.heard() == []
    pulse.ready()
    assert listener.heard() == ["READY=1 WATCHDOG=1"]
    pulse.ready()
    pulse.beat()
    assert (listener.heard(), pulse.is_due) == ([], False)
    clock.sleep(_SILENCE_S / 3)
    assert pulse.is_due
    pulse.beat()
    assert listener.heard() == ["WATCHDOG=1"]
    pulse.stopping()
    clock.sleep(_SILENCE_S)
    pulse.beat()
    assert listener.heard() == ["STOPPING=1 WATCHDOG=1"]


def test_it_asks_for_patience_and_takes_it_back(listening: tuple[Listener, dict[str, str]]) -> None:
    (listener, environ), clock = listening, ManualClock()
    pulse = Pulse(environ, clock)
    with pulse.patience(60):
        assert listener.heard() == []  # it was not ready
    pulse.ready()
    listener.heard()
    with pulse.patience(60):
        assert listener.heard() == ["WATCHDOG=1 WATCHDOG_USEC=72000000"]
        clock.sleep(5)
        pulse.beat()
        assert listener.heard() == ["WATCHDOG=1"]
    assert listener.heard() == ["WATCHDOG=1 WATCHDOG_USEC=12000000"]


def test_what_a_busy_listener_did_not_take_it_hears_with_the_next_beat(
    listening: tuple[Listener, dict[str, str]],
) -> None:
    (listener, environ), clock = listening, ManualClock()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                other.sendto(b"x", environ["NOTIFY_SOCKET"].replace("@", "\0", 1))
    pulse = Pulse(environ, clock)
    pulse.ready()
    with pulse.patience(1):
        assert set(listener.heard()) == {"x"}
        clock.sleep(5)
        pulse.beat()
        assert listener.heard() == ["READY=1 WATCHDOG=1 WATCHDOG_USEC=13000000"]


@pytest.mark.parametrize(
    "changed",
    [
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "vsock:2:1"},
        {"NOTIFY_SOCKET": "/nowhere/notify"},
        {"WATCHDOG_PID": str(os.getpid() + 1)},
        {"WATCHDOG_USEC": "a minute"},
        {"WATCHDOG_USEC": "0"},
    ],
    ids=lambda changed: " ".join(f"{name}={value[:9]}" for name, value in changed.items()),
)
def test_where_nobody_asks_nothing_is_said_and_nothing_fails(
    listening: tuple[Listener, dict[str, str]], changed: dict[str, str]
) -> None:
    (listener, environ), clock = listening, ManualClock()
    pulse = Pulse(environ | changed, clock)
    pulse.ready()
    for _ in range(3):
        clock.sleep(_SILENCE_S)
        pulse.beat()
        with pulse.patience(1):
            pulse.beat()
    assert set(listener.heard()) <= {"READY=1"}
    assert pulse.every_s == 0 or "/nowhere" in changed.get("NOTIFY_SOCKET", "")
    pulse.stopping()


def test_its_own_pid_is_asked(listening: tuple[Listener, dict[str, str]]) -> None:
    listener, environ = listening
    pulse = Pulse(environ | {"WATCHDOG_PID": str(os.getpid())}, ManualClock())
    pulse.ready()
    assert pulse.every_s > 0
    assert listener.heard() == ["READY=1 WATCHDOG=1"]


def probed(file: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["probe", str(file), *words])
    return done.exit_code, done.stdout.strip()


def test_a_file_says_whether_a_process_is_ready_goes_on_or_stops(tmp_path: Path) -> None:
    file, clock = tmp_path / "pulse", ManualClock(wall_ms=round(time.time() * 1_000))
    pulse = Pulse({"STREAMLEARN_PULSE": str(file)}, clock)
    assert probed(file) == (1, "it was never ready")
    for said in (f"ready {os.getpid()} 1", "ready 4194305 1", "ready", ""):  # of an earlier process, or of nobody
        file.write_text(said)
        assert probed(file) == (1, "the process that was ready has ended")
    pulse.ready()
    assert probed(file) == (0, "")
    os.utime(file, (time.time() - 100, time.time() - 100))
    status, said = probed(file)
    assert status == 1
    assert re.fullmatch(r"its last heartbeat was 1[0-5]\d s ago", said)
    assert probed(file, "--within", "200") == (0, "")
    pulse.beat()
    assert probed(file)[0] == 1, "none is due"
    clock.sleep(pulse.every_s)
    pulse.beat()
    assert probed(file) == (0, "")
    with pulse.patience(600):
        assert file.stat().st_mtime > time.time() + 500, "it may be silent for as long as it said"
    assert file.stat().st_mtime < time.time() + 60
    pulse.stopping()
    assert probed(file) == (1, "it is stopping")
    assert probed(file, "--started") == (0, "")


def test_a_file_that_cannot_be_written_hinders_nothing(tmp_path: Path) -> None:
    pulse = Pulse({"STREAMLEARN_PULSE": str(tmp_path / "no" / "pulse")}, ManualClock())
    pulse.ready()
    pulse.stopping()
    assert not list(tmp_path.iterdir())


def test_a_probe_without_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMLEARN_PULSE", raising=False)
    done = CliRunner().invoke(cli, ["probe"])
    assert isinstance(done.exception, UsageError)
