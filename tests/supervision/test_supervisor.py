"""The supervisor with real processes, each a few lines of Python: started, started again, stopped, killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from prometheus_client import REGISTRY

from streamlearn.errors import PartlyDone, ServiceError
from streamlearn.given_up import GivenUpFile, GivenUpProcess
from streamlearn.settings.up import UpSettings
from streamlearn.supervision import Member, Seen, Signals
from streamlearn.supervision.course import State
from streamlearn.supervision.member import INGEST, NODES, TRAINER
from streamlearn.supervision.supervisor import Supervisor
from streamlearn.testing import wait_until

_WAIT_S = 300.0
_SETTINGS = UpSettings(backoff_first_ms=10, backoff_ms_max=20, stop_s_max=120)
_SAY = """
import os, socket
def say(words):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.sendto(words.encode(), os.environ["NOTIFY_SOCKET"])
"""
# Says that it is there, and writes a file when it is told to end.
_STOPS = f"""{_SAY}
import pathlib, signal, sys, threading
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
print("listens", flush=True)
say("READY=1")
ended.wait()
with open(sys.argv[1], "a") as file:
    print(sys.argv[2], file=file)
"""
_STUBBORN = f"""{_SAY}
import signal, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("listens", flush=True)
say("READY=1")
threading.Event().wait()
"""


def python(code: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code, *words)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Watch:
    """Does something once all of some are ready."""

    def __init__(self, names: Sequence[str], then: Callable[[Signals, dict[str, int]], None]) -> None:
        self.signals = Signals(threading.Event(), threading.Event())
        self._names, self._then, self._is_done = set(names), then, False
        self.pids: dict[str, int] = {}

    def __call__(self, seen: Sequence[Seen]) -> None:
        running = {one.standing.member.name: one.pid for one in seen if one.standing.state is State.RUNNING and one.pid}
        if not self._is_done and self._names <= set(running):
            self._is_done = True
            self.pids = running
            self._then(self.signals, running)


def run(members: Sequence[Member], logs: Path, watch: Watch, settings: UpSettings = _SETTINGS) -> list[dict[str, Any]]:
    # It only ends what hangs.
    timer = threading.Timer(_WAIT_S, watch.signals.kill.set)
    timer.start()
    try:
        return Supervisor(members, settings, logs).run(watch.signals, watch)
    finally:
        timer.cancel()


def stop(signals: Signals, pids: dict[str, int]) -> None:
    del pids
    signals.stop.set()


def test_members_are_stopped_in_order_and_none_is_left(tmp_path: Path) -> None:
    said = tmp_path / "said"
    members = [
        Member(name, stage, python(_STOPS, str(said), name))
        for name, stage in (("node-1", NODES), ("trainer", TRAINER), ("ingest", INGEST))
    ]
    watch = Watch(["node-1", "trainer", "ingest"], stop)
    lines = run(members, tmp_path, watch)
    assert said.read_text().split() == ["ingest", "trainer", "node-1"]
    assert [(one["process"], one["ended"], one["restarts"]) for one in lines] == [
        ("node-1", "status 0", 0), ("trainer", "status 0", 0), ("ingest", "status 0", 0),
    ]  # fmt: skip
    assert not any(map(is_alive, watch.pids.values()))
    log = (tmp_path / "trainer.log").read_text().splitlines()
    assert re.fullmatch(r"--- trainer started as pid \d+ at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", log[0])
    assert log[1] == "listens"


def test_a_member_that_is_killed_is_started_again(tmp_path: Path) -> None:
    def kill(signals: Signals, pids: dict[str, int]) -> None:
        del signals
        os.kill(pids["trainer"], signal.SIGKILL)

    def show(seen: Sequence[Seen]) -> None:
        watch(seen)
        if seen[0].standing.restarts and seen[0].standing.state is State.RUNNING and seen[0].said == "listens":
            assert seen[0].pid not in watch.pids.values()
            watch.signals.stop.set()

    watch = Watch(["trainer"], kill)
    members = [Member("trainer", TRAINER, python(_STOPS, str(tmp_path / "said"), "x"))]
    lines = Supervisor(members, _SETTINGS, tmp_path).run(watch.signals, show)
    assert (lines[0]["ended"], lines[0]["restarts"]) == ("status 0", 1)
    assert REGISTRY.get_sample_value("streamlearn_supervision_restarts_total", {"process": "trainer"}) == 1
    state = {"process": "trainer", "state": "ended"}
    assert REGISTRY.get_sample_value("streamlearn_supervision_state_processes", state) is not None


# Its work goes round until it finds a file.
_WORKS = f"""{_SAY}
import faulthandler, pathlib, sys, threading, time
faulthandler.enable()
say("READY=1")
def work():
    while not pathlib.Path(sys.argv[1]).exists():
        say("WATCHDOG=1")
        time.sleep(0.01)
    threading.Lock().acquire(timeout=0)
    stuck_here()
def stuck_here():
    threading.Event().wait()
work()
"""


def hangs(name: str) -> float | None:
    return REGISTRY.get_sample_value("streamlearn_supervision_hangs_total", {"process": name})


def run_until_again(
    member: Member, logs: Path, then: Callable[[Signals, dict[str, int]], None], said: str = ""
) -> dict[str, Any]:
    """Run until a member that was made to hang is there again, and something is in its log."""

    def show(seen: Sequence[Seen]) -> None:
        watch(seen)
        is_again = seen[0].standing.restarts and seen[0].standing.state is State.RUNNING
        # On a machine that stalls, it may be taken for one that hangs before it does.
        if is_again and said in (logs / f"{member.name}.log").read_text():
            watch.signals.kill.set()

    watch, before = Watch([member.name], then), hangs(member.name) or 0
    settings = structs.replace(_SETTINGS, silence_s_max=3.0)
    timer = threading.Timer(_WAIT_S, watch.signals.kill.set)
    timer.start()
    try:
        with pytest.raises(PartlyDone):  # as the one that is there again is killed
            Supervisor([member], settings, logs).run(watch.signals, show)
    finally:
        timer.cancel()
    assert not any(map(is_alive, watch.pids.values()))
    assert (hangs(member.name) or 0) > before
    return {"log": (logs / f"{member.name}.log").read_text(), **watch.pids}


def test_a_member_whose_work_stands_still_says_where_and_is_started_again(tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"
    member = Member("trainer", TRAINER, python(_WORKS, str(stuck)))
    found = run_until_again(member, tmp_path, lambda *_: stuck.touch(), "in stuck_here")
    assert "in stuck_here" in found["log"]
    assert found["log"].count("--- trainer started as pid") >= 2


def test_a_member_that_a_signal_stopped_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlearn.supervision.course.ABORTED_S_MAX", 0.2)
    member = Member("node-1", NODES, python(_WORKS, str(tmp_path / "never")))
    run_until_again(member, tmp_path, lambda _, pids: os.kill(pids["node-1"], signal.SIGSTOP))


def test_what_another_process_says_is_not_heard(tmp_path: Path) -> None:
    """One that a member started has the same socket, and is asked for no pulse."""
    forks = f"""{_SAY}
import threading
if os.fork():
    os.wait()
    print("asked of me" if int(os.environ["WATCHDOG_PID"]) == os.getpid() else "asked of another", flush=True)
    say("STOPPING=1")
else:
    say("READY=1")
    os._exit(0)
"""
    seen_states = set[State]()

    def show(seen: Sequence[Seen]) -> None:
        seen_states.add(seen[0].standing.state)

    signals = Signals(threading.Event(), threading.Event())
    Supervisor([Member("ingest", INGEST, python(forks), may_end=True)], _SETTINGS, tmp_path).run(signals, show)
    assert seen_states == {State.STARTING, State.ENDED}
    assert "asked of me" in (tmp_path / "ingest.log").read_text()


def test_a_member_that_fails_again_and_again_ends_all_and_its_words_are_said(tmp_path: Path) -> None:
    members = [
        Member("node-1", NODES, python(_STOPS, str(tmp_path / "said"), "node-1")),
        Member("trainer", TRAINER, python("import sys; sys.exit('error: no samples\\nhelp: make some')")),
    ]
    watch = Watch(["node-1"], lambda *_: None)
    with pytest.raises(ServiceError) as caught:
        run(members, tmp_path, watch, UpSettings(restarts_max=2, backoff_first_ms=1))
    words = str(caught.value)
    assert "trainer ended with status 1 after 2 restarts" in words
    assert "  error: no samples\n  help: make some" in words
    assert str(tmp_path / "trainer.log") in words
    assert caught.value.exit_code == 1
    assert not any(map(is_alive, watch.pids.values()))


def test_who_is_given_up_alone_starts_again_when_the_application_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its usage error is in the log; what else runs goes on, and a change of the files is logged once."""
    app = tmp_path / "app.py"
    app.write_text("good")
    reads = f"""{_STOPS.replace("ended.wait()", "")}
while not ended.wait(0.01):
    if open(sys.argv[3]).read() != "good":
        print("error: a slot is new\\nhelp: see the page", flush=True)
        sys.exit(2)
"""
    members = [
        Member("ingest", INGEST, python(reads, str(tmp_path / "said"), "ingest", str(app))),
        Member("node-1", NODES, python(_STOPS, str(tmp_path / "said"), "node-1")),
    ]
    states = list[State]()

    def show(seen: Sequence[Seen]) -> None:
        state = seen[0].standing.state
        if all(one.standing.state is State.RUNNING for one in seen):
            if State.GIVEN_UP not in states:
                app.write_text("bad")
            elif pids:  # without any, it starts again with the bad file, as that was noticed after the process's end
                assert seen[1].pid == pids[0]  # the node has run all the time
                signals.stop.set()
        if state is State.GIVEN_UP and not pids and "changed since the start" in caplog.text:
            pids.append(seen[1].pid)
            app.write_text("good")
        states.append(state)
        told.append([state is State.GIVEN_UP, *file.read()])

    file = GivenUpFile(tmp_path)
    file.write([GivenUpProcess("trainer", "status 2", "of an `up` that was killed", 1, os.getpid())])
    told = list[list[object]]()
    pids = list[int | None]()
    signals = Signals(threading.Event(), threading.Event())
    timer = threading.Timer(_WAIT_S, signals.kill.set)
    timer.start()
    with caplog.at_level("INFO"):
        ended = Supervisor(members, _SETTINGS, tmp_path, [app], given_up=file).run(signals, show)
    timer.cancel()
    assert {len(found) for found in told if not found[0]} == {1}
    named = {found[1] for found in told if found[0]}  # twice if the bad change starts it again
    assert {msgspec.structs.replace(one, wall_ms=0) for one in named if isinstance(one, GivenUpProcess)} == {
        GivenUpProcess("ingest", "status 2", str(tmp_path / "ingest.log"), 0, os.getpid())
    }
    assert file.path.name not in [path.name for path in file.path.parent.iterdir()]
    # Each change starts it again. The bad one does too, if it is noticed only after the process has ended.
    assert ended[0]["restarts"] in (1, 2)
    assert ended[1]["restarts"] == 0
    assert "ingest ended with status 2; giving it up, the others go on" in caplog.text
    assert "error: a slot is new / help: see the page" in caplog.text
    assert "starting ingest again, because the application's files changed" in caplog.text


def test_the_end_names_who_was_given_up_alone(tmp_path: Path) -> None:
    wrong = f"""{_SAY}
import sys, time
say("READY=1")
while open(sys.argv[1]).read() != "bad":
    time.sleep(0.01)
sys.exit(2)
"""
    app = tmp_path / "app.py"
    app.write_text("good")
    members = [
        Member("ingest", INGEST, python(wrong, str(app))),
        Member("node-1", NODES, python(_STOPS, str(tmp_path / "said"), "node-1")),
    ]
    signals = Signals(threading.Event(), threading.Event())

    def show(seen: Sequence[Seen]) -> None:
        if all(one.standing.state is State.RUNNING for one in seen):
            app.write_text("bad")
        if seen[0].standing.state is State.GIVEN_UP:
            signals.stop.set()

    with pytest.raises(ServiceError, match="ingest ended with status 2 after 0 restarts, and was given up") as caught:
        Supervisor(members, _SETTINGS, tmp_path, given_up=GivenUpFile(tmp_path)).run(signals, show)
    assert str(tmp_path / "ingest.log") in caught.value.help
    assert (tmp_path / "said").read_text().split() == ["node-1"]
    assert not GivenUpFile(tmp_path).path.exists(), "it holds as long as `up` runs"


def test_what_cannot_be_run_at_all_is_told_likewise(tmp_path: Path) -> None:
    members = [Member("ingest", INGEST, ("/nowhere/streamlearn", "ingest"))]
    with pytest.raises(ServiceError, match="status 127") as caught:
        run(members, tmp_path, Watch(["x"], stop), UpSettings(restarts_max=1, backoff_first_ms=1))
    assert "/nowhere/streamlearn: No such file" in caught.value.message


def test_who_does_not_stop_is_killed_after_the_deadline_and_it_is_said(tmp_path: Path) -> None:
    members = [
        Member("trainer", TRAINER, python(_STUBBORN)),
        Member("node-1", NODES, python(_STOPS, str(tmp_path / "said"), "node-1")),
    ]
    watch = Watch(["trainer", "node-1"], stop)
    supervisor = Supervisor(members, UpSettings(stop_s_max=0.2), tmp_path)

    def show(seen: Sequence[Seen]) -> None:
        watch(seen)
        if watch.pids and not is_alive(watch.pids["trainer"]):  # the next stage has more time
            supervisor._course._settings = _SETTINGS

    timer = threading.Timer(_WAIT_S, watch.signals.kill.set)
    timer.start()
    with pytest.raises(PartlyDone, match=r"1 of 2 processes .* trainer ended with SIGKILL") as caught:
        supervisor.run(watch.signals, show)
    timer.cancel()
    assert caught.value.exit_code == 3
    # The next stage was stopped as it should all the same.
    assert (tmp_path / "said").read_text() == "node-1\n"
    assert not any(map(is_alive, watch.pids.values()))


def test_a_second_word_kills_at_once(tmp_path: Path) -> None:
    def stop_twice(signals: Signals, pids: dict[str, int]) -> None:
        del pids
        signals.stop.set()
        signals.kill.set()

    watch = Watch(["trainer"], stop_twice)
    with pytest.raises(PartlyDone):
        run([Member("trainer", TRAINER, python(_STUBBORN))], tmp_path, watch)
    assert not any(map(is_alive, watch.pids.values()))


def test_input_that_ends_is_the_end(tmp_path: Path) -> None:
    lines = run([Member("ingest", INGEST, python("print('done')"), may_end=True)], tmp_path, Watch(["x"], stop))
    assert lines == [
        {"process": "ingest", "ended": "status 0", "restarts": 0, "log": str(tmp_path / "ingest.log")}
    ]  # fmt: skip


def test_what_a_member_left_in_its_group_is_ended_with_it(tmp_path: Path) -> None:
    leaves = "import os, threading\nchild = os.fork()\nchild or threading.Event().wait()\nprint('child', child)"
    run([Member("ingest", INGEST, python(leaves), may_end=True)], tmp_path, Watch(["x"], stop))
    lines = (tmp_path / "ingest.log").read_text().splitlines()
    found = [line.split()[1] for line in lines if line.startswith("child")]
    assert len(found) == 1
    wait_until(lambda: not any(is_alive(int(pid)) for pid in found), "what was left has ended", _WAIT_S)


_OWNER = """
import sys, threading
from pathlib import Path
from streamlearn.settings.up import UpSettings
from streamlearn.supervision import Member, Signals
from streamlearn.supervision.supervisor import Supervisor
members = [Member("trainer", 1, (sys.executable, "-I", "-S", "-c", sys.argv[2]))]
def show(seen):
    if seen[0].standing.state == "running":
        print(seen[0].pid, flush=True)
Supervisor(members, UpSettings(), Path(sys.argv[1])).run(Signals(threading.Event(), threading.Event()), show)
"""


def test_members_of_a_supervisor_that_is_killed_end_with_it(tmp_path: Path) -> None:
    call = [sys.executable, "-c", _OWNER, str(tmp_path), _STUBBORN]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert is_alive(pid)
        owner.kill()
    wait_until(lambda: not is_alive(pid), "the member has ended", _WAIT_S)
