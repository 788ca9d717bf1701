"""Settings of serving nodes: what the native front gets, where lanes run, and how a node follows versions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from streamlearn.errors import ConfigError, LaneLost, NodeNotReady, UsageError
from streamlearn.models.tf_calls import Place
from streamlearn.serving import front as front_module
from streamlearn.serving import impression_writer, servable_versions
from streamlearn.serving import node as node_module
from streamlearn.serving.front import Front
from streamlearn.serving.graphs import compile_process
from streamlearn.serving.graphs.ladder import Ladder
from streamlearn.serving.lanes import device as device_module
from streamlearn.serving.lanes import lane_main, lane_process
from streamlearn.serving.lanes.device import lane_places
from streamlearn.serving.lanes.lane_processes import LaneProcesses
from streamlearn.serving.node import Node, replica_settings
from streamlearn.testing import ManualClock
from streamlearn.versions import Chain, History, PointerLog, Replica, Verdict, open_store, write_verdict
from streamlearn.versions.pointer.moves import publish
from tests.settings.conftest import Load
from tests.settings.probes import Calls, heeds, spied
from tests.versions.history import MODEL, Trainer, serving

FRONT = (
    "front.listen=127.0.0.2:0", "front.http=127.0.0.3:0", "front.threads=2", "front.candidates_max=77",
    "front.connections_max=99", "front.deadline_ms=777", "front.requests_max=88", "allowance.candidates_min=5",
    "allowance.shown=3", "allowance.class_segment=page", "allowance.short_history_percent=91",
    "front.shed_by_user=true", "front.ready_s=0.0625", "front.drain_s=1.25",
)  # fmt: skip
SERVING = (
    "serving.users_buckets=[1, 3]", "serving.candidates_buckets=[7, 9]", "serving.lengths=[2, 8]", "serving.lanes=3",
    "serving.lane_nice=6", "serving.compiles_max=97", "serving.golden_difference_max=0.375",
)  # fmt: skip
OTHERS = ("impressions.write_back=true", "join.logged_share=0.625", "replica.beat_s=1.25", "replica.versions_kept=7")


def test_a_class_segment_that_requests_lack_is_refused_with_those_they_have(small: Load) -> None:
    folder = small("allowance.class_segment=fresh")  # a segment of items
    tables = [spec.name for spec in folder.app.features.tables]
    with pytest.raises(ConfigError, match=r"allowance\.class_segment names 'fresh'") as caught:
        Front(folder.app, tables, folder.serving, folder.settings.front, folder.settings.allowance)
    assert "name one of page" in caught.value.help


class Begun(Exception):
    """Something would begin now."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Calls]:
    """What a node gives to its parts."""
    parts = (
        (front_module, "native.Front"), (node_module, "native.FrontNode"), (impression_writer, "native.Shown"),
        (node_module, "Lanes"), (node_module, "Replica"),
    )  # fmt: skip
    return {name.rpartition(".")[2]: spied(monkeypatch, owner, name) for owner, name in parts}


@pytest.fixture
def node(small: Load, calls: dict[str, Calls]) -> Iterator[Node]:
    with Node(small(*FRONT, *SERVING, *OTHERS), places=[Place("/CPU:0")]) as made:
        yield made


@heeds(
    "front.listen", "front.http", "front.threads", "front.candidates_max", "front.connections_max", "front.deadline_ms",
    "front.requests_max", "allowance.candidates_min", "allowance.shown", "allowance.class_segment",
    "allowance.short_history_percent", "front.shed_by_user",
    "front.drain_s", "front.ready_s", "serving.users_buckets", "serving.candidates_buckets",
    "serving.lengths", "serving.lanes", "serving.lane_nice", "serving.compiles_max",
    "serving.golden_difference_max", "impressions.write_back", "join.logged_share", "replica.beat_s",
    "replica.versions_kept",
)  # fmt: skip
def test_the_parts_of_a_node_have_the_settings(
    node: Node, calls: dict[str, Calls], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert node.grpc.startswith("127.0.0.2:")
    assert (node.http or "").startswith("127.0.0.3:")
    schema, buckets, limits, *_ = calls["Front"][0][0]
    assert json.loads(schema)["limits"]["candidates_max"] == 77
    assert buckets == ([1, 3], [7, 9], [2, 8])
    assert (limits.lanes, limits.requests_max) == (3, 88)
    assert json.loads(schema)["class_segment"] == "page"
    assert (limits.candidates_min, limits.shown, limits.deadline_us) == (5, 3, 777_000)
    assert (limits.by_cohort, limits.short_percent) == (True, 91)
    node_limits = calls["FrontNode"][0][0][3]
    assert (node_limits.threads, node_limits.connections_max, node_limits.requests_max) == (2, 99, 88)
    assert node_limits.drain_ms_max == 1_250
    assert calls["Shown"][0][1]["share"] == 0.625
    assert calls["Lanes"][0][1]["nice"] == 6
    named = calls["Replica"][0][1]
    assert (named["stage_nice"], named["settings"].versions_kept) == (16, 7)
    assert node._replica._stager.wait_s == 1.25
    assert node._kind._budget.compiles_max == 97  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setattr(servable_versions, "load_bytes", lambda *_: {"golden": b""})
        patched.setattr(servable_versions, "read_golden", lambda *_: (None, None))
        patched.setattr(servable_versions, "score_samples", lambda *_, **__: None)
        golden: list[float] = []
        patched.setattr(servable_versions, "check_golden", lambda *given: golden.append(given[2]))
        version: Any = SimpleNamespace(ref=SimpleNamespace(version=1))
        node._answering._check(version, None, SimpleNamespace(executables=None, dense=None), None)  # type: ignore[arg-type]
    assert golden == [0.375]
    given_up = threading.Event()
    timer = threading.Timer(120, given_up.set)
    timer.start()
    node._replica.report("tables", "its tables are others")
    with pytest.raises(NodeNotReady):
        node.wait_ready(given_up)
    timer.cancel()
    assert [text for text in caplog.messages if "its tables" in text] == [
        "the node is not ready yet: its tables are others"
    ]


@heeds("front.split_pieces_max")
def test_requests_are_split_into_as_many_pieces_as_the_setting_says(
    small: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    class Recorder:
        """A native node whose calls of `split` are kept."""

        def __init__(self, *arguments: Any, **more: Any) -> None:
            self._native = listen(*arguments, **more)

        def split(self, *arguments: Any) -> None:
            given.append(arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._native, name)

    listen = node_module._listen
    monkeypatch.setattr(node_module, "_listen", Recorder)
    with Node(small("front.split_pieces_max=3", "front.listen=127.0.0.1:0", "front.http="), places=[Place("/CPU:0")]):
        assert given == [(3, None)]
    for off in (0, 1):
        settings = small(f"front.split_pieces_max={off}").settings.front
        assert not node_module._splits(settings, has_tls=True, authority=None)


@heeds("serving.users_buckets", "serving.candidates_buckets", "serving.lengths", "serving.compiles_max")
def test_the_shapes_that_are_compiled_are_those_of_the_settings(small: Load) -> None:
    described: Any = SimpleNamespace(
        pack={"user": {"sequence_length": 8}}, user=SimpleNamespace(inputs=[]), score=SimpleNamespace(inputs=[])
    )
    ladder = Ladder.of(small(*SERVING).settings.serving, described)
    assert (ladder.users, ladder.candidates, ladder.lengths) == ((1, 3), (7, 9), (2, 8))
    with pytest.raises(ConfigError, match="compiles_max is 7"):
        Ladder.of(small(*SERVING, "serving.compiles_max=7").settings.serving, described)


@heeds("serving.device", "serving.lanes", "serving.lane_memory_bytes")
def test_lanes_run_on_the_devices_of_the_settings(small: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    divided: list[list[int]] = []
    devices: dict[str, list[Any]] = {"GPU": [], "CPU": [SimpleNamespace(device_type="CPU", name="cpu")]}
    threading_of = SimpleNamespace(
        set_intra_op_parallelism_threads=lambda _: None, set_inter_op_parallelism_threads=lambda _: None
    )
    monkeypatch.setattr(tf.config, "threading", threading_of)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: devices[kind])
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: devices[kind])
    monkeypatch.setattr(tf.config.experimental, "enable_tensor_float_32_execution", lambda _: None)
    monkeypatch.setattr(
        tf.config, "set_logical_device_configuration",
        lambda _, parts: divided.append([part.memory_limit for part in parts]),
    )  # fmt: skip
    monkeypatch.setattr(device_module, "Place", str)
    odd = ("serving.lanes=3", f"serving.lane_memory_bytes={777 << 20}")
    with pytest.raises(UsageError, match=r"serving\.device is gpu"):
        lane_places(small(*odd, "serving.device=gpu").settings.serving)
    devices["GPU"] = [SimpleNamespace(device_type="GPU", name="gpu")]
    on_cpus: list[Any] = [*lane_places(small(*odd, "serving.device=cpu").settings.serving)]
    assert on_cpus == ["cpu"] * 3
    assert divided == []
    on_gpus: list[Any] = [*lane_places(small(*odd).settings.serving)]
    assert on_gpus == ["gpu"] * 3
    assert divided == [[777, 777, 777]]
    lane_places(small(*odd, "serving.lane_processes=true").settings.serving)
    assert divided[1:] == [[777]]


def test_lanes_of_a_node_with_an_allowance_give_way_unless_it_says_how_much(small: Load) -> None:
    said = ((), ("allowance.candidates_min=5",), ("allowance.candidates_min=5", "serving.lane_nice=2"))
    assert [small(*one).serving.lane_nice for one in said] == [0, 4, 2]


@heeds("serving.lane_processes", "serving.lane_gpus", "serving.lanes", "serving.lane_nice")
def test_lanes_are_processes_with_the_settings(small: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = ("serving.lane_processes=true", "serving.lanes=3", "serving.lane_nice=4")
    folder = small(*odd, 'serving.lane_gpus=["5", "7"]')
    started: dict[str, Any] = {}

    def start(command: list[str], **named: Any) -> Any:
        started.update(named, command=command)
        return popen(["true"], **named)

    popen = subprocess.Popen
    front = Front(
        folder.app, ["main", "text"], folder.settings.serving, folder.settings.front, folder.settings.allowance
    )
    kind = node_module._lane_kind(folder, front, None, None)
    assert isinstance(kind, LaneProcesses)
    assert len(kind.places) == 3
    monkeypatch.setattr(lane_process, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start}))
    with pytest.raises(LaneLost):
        kind.start(kind.places[1])
    kind.close()
    assert started["env"]["CUDA_VISIBLE_DEVICES"] == "7"
    nice = nice_of(lane_main.main, started["command"][-1], lane_main, monkeypatch)
    assert nice == 4
    settings = json.dumps(json.loads(started["command"][-1])["settings"])
    assert nice_of(compile_process.main, settings, compile_process, monkeypatch) == 14


def nice_of(main: Callable[[], None], argument: str, module: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """The niceness that a process of a node takes; it gets its settings as an argument."""
    nice: list[int] = []

    def give_way(value: int) -> None:
        nice.append(value)
        raise Begun

    with monkeypatch.context() as patched:
        patched.setattr(sys, "argv", ["main", argument])
        patched.setattr(signal, "signal", lambda *_: None)
        patched.setattr(module, "give_way", give_way)
        for name in ("dup", "dup2", "fdopen"):
            patched.setattr(os, name, lambda *_, **__: 1)
        with pytest.raises(Begun):
            main()
    return nice[0]


@heeds("serving.cache_folder")
def test_compiled_code_is_kept_in_the_folder_of_the_setting(
    small: Load, verb: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*_: Any, **__: Any) -> None:
        raise Begun

    monkeypatch.setenv("TF_XLA_FLAGS", "")
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.setattr(node_module, "Node", begin)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    ended = verb("serve", small().folder, "--set", f"serving.cache_folder={tmp_path}/odd-cache")
    assert isinstance(ended.exception, Begun), ended.output
    assert f"={tmp_path}/odd-cache/" in os.environ["TF_XLA_FLAGS"]
    assert list((tmp_path / "odd-cache").iterdir())


@heeds("replica.versions_kept", "front.drain_s")
def test_a_node_keeps_and_drains_versions_as_the_settings_say(small: Load) -> None:
    settings = replica_settings(small("replica.versions_kept=1", "front.drain_s=7.5").settings)
    store, clock = open_store(small().store_url), ManualClock()
    trainer, log = Trainer(store), PointerLog(store, MODEL)
    replica = Replica(store, MODEL, lambda: serving("float32"), name="node", settings=settings, clock=clock)
    for version in (1, 2, 3, 4, 5):
        (done,) = trainer.story([version])
        write_verdict(store, done.folder, Verdict(version=done.ref, outcome="passed"))
        log.move(partial(publish, known=History(store, MODEL).read(), version=version, run=1), by="publisher")
        clock.sleep(60)
        replica.step()
    assert [ref.version for ref in replica.status().staged] == [4, 5]
    stager, chain = replica._stager, Chain.find(store, MODEL)
    current = replica._position.current
    assert current is not None
    assert not stager._drained(current, chain, "to test it")
    clock.sleep(7)
    assert not stager._drained(current, chain, "to test it")
    clock.sleep(0.5)
    assert stager._drained(current, chain, "to test it")
    replica.close()


@heeds("replica.beat_s")
def test_a_node_sends_its_heartbeat_as_often_as_the_setting_says(small: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, clock, beats = small("replica.beat_s=7.5").settings.replica, ManualClock(), list[float]()
    replica = Replica(
        open_store(small().store_url), MODEL, lambda: serving("float32"), name="node", settings=settings, clock=clock
    )
    monkeypatch.setattr(replica, "_beat", lambda: beats.append(clock.monotonic_s()))
    replica._ended.set()  # so that it does not wait between two looks
    for seconds in (0, 7, 0.75):
        clock.sleep(seconds)
        replica._listen_once()
    assert beats == [0, 7.75]
    replica.close()
