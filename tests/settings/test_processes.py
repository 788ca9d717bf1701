"""Settings of shards and their clients, of `up`, of the console, and of logs and metrics."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamlearn import metrics_server
from streamlearn.cli.model import console as console_verb
from streamlearn.console import server as console_server
from streamlearn.errors import TrainingFailed, UsageError, WorkerLost
from streamlearn.ps import Epoch, remote, server
from streamlearn.supervision import planned
from streamlearn.supervision.course import Act, Order, State
from streamlearn.supervision.member import NODES, WORKERS
from streamlearn.supervision.plan import UpOptions
from streamlearn.supervision.ports import free_ports
from streamlearn.supervision.supervisor import Supervisor
from streamlearn.testing import ManualClock
from streamlearn.trainer import trainer_setup
from streamlearn.trainer.workers.leader import Leader
from streamlearn.trainer.workers.messages import Ask, Setup
from streamlearn.trainer.workers.setup import lead
from streamlearn.trainer.workers.slice_worker import Clients
from streamlearn.versions import open_store
from tests.console.gathered import gathered, moved
from tests.settings.conftest import Load
from tests.settings.probes import heeds, spied
from tests.settings.test_ingest import with_topics


class Begun(Exception):
    """Something would begin now."""


def sets(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


@heeds("ps.listen", "ps.threads")
def test_a_shard_listens_as_the_settings_say(
    small: Load, verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def begin(*arguments: Any) -> None:
        given.extend(arguments)
        raise Begun

    monkeypatch.setattr(server, "native", SimpleNamespace(PsServer=begin))
    monkeypatch.setattr("streamlearn.cli.run.ps.stop_event", threading.Event)
    ended = verb("ps", "--app", small().folder, *sets('ps.listen=["127.0.0.2:0", "unix:/odd"]', "ps.threads=3"))
    assert isinstance(ended.exception, Begun), ended.output
    assert given[0] == ["127.0.0.2:0", "unix:/odd"]
    assert given[4] == 3


@heeds("ps.addresses", "ps.encoding", "ps.tls_ca", "ps.tls_server_name", "ps.retry_wait_ms_max")
def test_a_trainer_reaches_shards_as_the_settings_say(small: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def begin(*arguments: Any) -> None:
        given.extend(arguments)
        raise Begun

    monkeypatch.setattr(remote, "native", SimpleNamespace(PsClient=begin))
    folder = small(
        'ps.addresses=["127.0.0.2:7", "127.0.0.3:7"]', "ps.encoding=float16", "ps.tls_ca=/odd/ca.pem",
        "ps.tls_server_name=shards.odd", "ps.retry_wait_ms_max=77_777",
    )  # fmt: skip
    with pytest.raises(Begun):
        trainer_setup._client(folder, open_store("memory://odd"), None)
    identity, _, tls, limits = given
    assert identity[0] == ["127.0.0.2:7", "127.0.0.3:7"]
    assert identity[6] == "float16"
    assert tls == ("/odd/ca.pem", "shards.odd")
    assert ("retry_wait_ms_max", 77_777) in limits


@heeds("up.nodes", "front.listen", "front.http", "ps.addresses", "telemetry.listen")
def test_up_runs_the_processes_of_the_settings_at_their_addresses(small: Load) -> None:
    odd = ("up.nodes=3", "front.listen=127.0.0.1:9101", "front.http=127.0.0.1:9201", "telemetry.listen=127.0.0.1:9301")
    folder = small(*odd, 'ps.addresses=["127.0.0.1:9401", "10.0.0.9:9401"]')
    plan = planned(folder, UpOptions(), taken=lambda *_: False)
    nodes = [member.where for member in plan.members if member.stage == NODES]
    assert [(where["grpc"], where["http"]) for where in nodes] == [
        (f"127.0.0.1:{9_101 + step}", f"127.0.0.1:{9_201 + step}") for step in (0, 10, 20)
    ]
    assert [member.where["frames"] for member in plan.members if "frames" in member.where] == ["127.0.0.1:9401"]
    assert plan.metrics == "127.0.0.1:9301"
    assert [member.where["metrics"] for member in plan.members] == [f"127.0.0.1:{port}" for port in range(9_302, 9_308)]


@heeds("up.workers", "workers.listen")
def test_up_runs_the_workers_of_the_settings_with_the_trainer(small: Load) -> None:
    folder = small("up.workers=3", "workers.slices=4", 'workers.listen=["127.0.0.1:9501"]')
    plan = planned(folder, UpOptions(shards=1), taken=lambda *_: False)
    workers = [member for member in plan.members if member.stage == WORKERS]
    assert [member.name for member in workers] == ["worker-1", "worker-2", "worker-3"]
    assert all(member.needs == ("trainer",) and "127.0.0.1:9501" in member.command for member in workers)
    assert [one.where.get("workers") for one in plan.members if one.name == "trainer"] == ["127.0.0.1:9501"]
    for change, shards in (("workers.slices=1", 1), ("workers.slices=4", 0)):
        with pytest.raises(UsageError, match=r"up\.workers is 3"):
            planned(small("up.workers=3", change), UpOptions(shards=shards), taken=lambda *_: False)


@heeds("workers.slices", "workers.leader_learns", "workers.worker_wait_s_max")
def test_a_leader_divides_steps_as_the_settings_say(small: Load) -> None:
    settings = small("workers.slices=3", "workers.leader_learns=false", "workers.worker_wait_s_max=0.5").settings
    clock, client = ManualClock(), SimpleNamespace(epoch=Epoch(1))
    dense = SimpleNamespace(whole=np.zeros(1, np.float32), slots=[])
    learner = SimpleNamespace(dense_update=lambda: dense, steps=0, rate_scale=1.0)
    clients, rows = Clients(client, client), SimpleNamespace()  # type: ignore[arg-type]
    leader = Leader(learner, rows, clients, settings.workers, Setup("", ""), clock=clock)  # type: ignore[arg-type]
    with leader.session(threading.Event()):
        assert leader.workers == []  # it does not learn
        leader.answer(Ask("ab", "host:1", Setup("", "x"), 1))
        step, _ = leader._roster.offer(), leader._roster.take("ab", clock.monotonic_s())
        assert len(leader._roster._open[step].free) == 2
        clock.sleep(0.6)
        with leader._changed, pytest.raises(WorkerLost, match="silent"):
            leader._check(step)


@heeds("workers.reduce", "workers.members")
def test_a_trainer_waits_for_the_other_members_of_a_group(small: Load) -> None:
    odd = ("workers.reduce=nccl", "workers.members=3", "workers.slices=6", 'workers.listen=["127.0.0.1:0"]')
    folder, stop, client = small(*odd, 'ps.addresses=["127.0.0.2:7"]'), threading.Event(), SimpleNamespace()
    stop.set()
    with ExitStack() as ends, pytest.raises(TrainingFailed, match="1 of 3 members"):
        lead(folder, client, None, None, ends, stop=stop)  # type: ignore[arg-type]


@heeds("up.restarts_max", "up.silence_s_max", "up.stop_s_max")
def test_a_process_is_restarted_and_stopped_as_the_settings_say(
    small: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    clock, started = ManualClock(), list[str]()

    def start(*_: Any, env: dict[str, str], **__: Any) -> None:
        started.append(env["WATCHDOG_USEC"])
        raise OSError

    monkeypatch.setattr("streamlearn.supervision.process.subprocess.Popen", start)
    folder = small("up.restarts_max=2", "up.silence_s_max=12.5", "up.stop_s_max=7.5")
    members = planned(folder, UpOptions(), taken=lambda *_: False).members
    supervisor = Supervisor(members, folder.settings.up, tmp_path, clock=clock)
    request.addfinalizer(supervisor._kill_all)
    course, waits = supervisor._course, list[float]()
    while not course.given_up:
        for order in course.orders():
            if order.name == "ingest":
                supervisor._obey(order.act, course.standing(order.name).member)
        waits.append(course.standing("ingest").backoff.left_s)
        clock.sleep(waits[-1])
    assert started == ["12500000"] * 3
    assert waits[:2] == [0.5, 1.0]
    course.ready("node-1")
    assert course.standing("node-1").state is State.RUNNING
    assert course.standing("node-1").silence_s_max == 12.5
    course.ended("trainer", 0)
    assert Order(Act.STOP, "node-1") in course.orders()
    clock.sleep(7)
    assert course.orders() == []
    clock.sleep(0.75)
    assert Order(Act.KILL, "node-1") in course.orders()


@heeds("console.listen", "telemetry.log_format", "telemetry.log_level", "telemetry.listen", "telemetry.token_file")
def test_the_console_heeds_its_settings_and_those_of_logs_and_metrics(
    small: Load, verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped = threading.Event()
    stopped.set()
    monkeypatch.setattr(console_verb, "stop_event", lambda: stopped)
    (port,) = free_ports(1)
    metrics = spied(monkeypatch, metrics_server, "MetricsServer")
    watches, told = spied(monkeypatch, console_server, "Watch"), spied(monkeypatch, console_server, "state_of")
    (tmp_path / "token").write_text("open-sesame")
    odd = (
        "console.listen=127.0.0.2:0", "publisher.publish_interval_s=77.5", "replica.beat_s=1.25",
        f"telemetry.listen=127.0.0.3:{port}", f"telemetry.token_file={tmp_path}/token",
    )  # fmt: skip
    ended = verb("console", small().folder, *sets(*odd, "telemetry.log_format=json", "telemetry.log_level=debug"))
    assert ended.exit_code == 0, ended.output
    assert "the console of small is at http://127.0.0.2:" in ended.stdout
    assert metrics[0][0][0] == f"127.0.0.3:{port}"
    assert metrics[0][0][1].current() == b"open-sesame"
    (_, tell), _ = watches[0]
    tell(gathered(moved(1, 10)))
    after = told[0][1]["after"]
    assert (after.training_s, after.beat_s) == (5 * 77.5, 1.25)
    logger = logging.getLogger("streamlearn")
    assert logger.level == logging.DEBUG
    assert json.loads(logger.handlers[0].format(logging.makeLogRecord({"msg": "odd"})))["message"] == "odd"


def begun(*_: Any, **__: Any) -> None:
    raise Begun


# Each verb that runs a process, and what it calls once its logs are set up.
RUNS = {
    "ingest": "streamlearn.metrics_server.serve_metrics",
    "serve": "streamlearn.serving.graphs.compile_cache.CompileCache.open",
    "train": "streamlearn.models.tensorflow_load.load_tensorflow",
    "up": "streamlearn.metrics_server.serve_metrics",
}


@pytest.mark.parametrize(("name", "first"), RUNS.items())
@heeds("telemetry.log_format", "telemetry.log_level")
def test_every_process_logs_as_the_settings_say(
    small: Load, verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str, first: str
) -> None:
    folder = with_topics(small())
    monkeypatch.setattr(first, begun)
    monkeypatch.setattr("streamlearn.cli.run.serve.stop_event", threading.Event)
    monkeypatch.setattr("sys.setswitchinterval", lambda _: None)
    odd = (f"topics.root={folder.settings.topics.root}", "telemetry.log_format=json", "telemetry.log_level=warning")
    ended = verb(name, folder.folder, *sets(*odd, "front.listen=127.0.0.1:0", "front.http=127.0.0.1:0"))
    assert isinstance(ended.exception, Begun), ended.output
    logger = logging.getLogger("streamlearn")
    assert logger.level == logging.WARNING
    assert json.loads(logger.handlers[0].format(logging.makeLogRecord({"msg": "odd"})))["message"] == "odd"
