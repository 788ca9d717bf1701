"""Peers' servers, as far as they go without their environments: started, checked, paused and ended."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.nodes import serving_peers
from benchmarks.nodes.serving_peers import SERVING_PEERS, PeerServer, best_delay_ms, ready_servers
from benchmarks.nodes.serving_workload import Workload
from streamlearn.errors import ServiceError
from streamlearn.features import FeatureSpec, Slot
from streamlearn.load.load_run import LoadPlan
from streamlearn.load.requests import LoadRequests
from streamlearn.testing import wait_until
from tools.services.cache import Cache

__all__: list[str] = []

# What a server may be: it answers each id with a half, and burns CPU for it that can be seen.
_SCRIPT = """
import http.server, os, sys, time
port, folder, delay_s = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) / 1000
class Door(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    def do_POST(self):
        import struct
        ids = self.rfile.read(int(self.headers["content-length"]))
        sum(range(50_000))
        time.sleep(delay_s)
        body = struct.pack(f"<{len(ids) // 4 - 1}f", *[0.5] * (len(ids) // 4 - 1))
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *told):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Door)
for worker in range(int(os.environ["STREAMLEARN_PEER_WORKERS"])):
    open(f"{folder}/ready-{worker}", "w").close()
server.serve_forever()
"""


class _Here:
    """An environment that is this one."""

    def build(self, cache: Cache) -> Path:
        return Path(sys.executable)


class _Fake(type(SERVING_PEERS["mosec"]())):  # type: ignore[misc] # spoken to as mosec is
    environment = _Here()

    def command(self, python: Path, folder: Path, workers: int, delay_ms: int) -> tuple[list[str], dict[str, str]]:
        return [str(python), "-I", "-S", "-c", _SCRIPT, str(self._port), str(folder), str(delay_ms)], {}


def _workload(expected: float) -> Workload:
    """A user of one slot, and candidates of one."""
    features = FeatureSpec((Slot("who", "user", dim=2), Slot("video_id", "item", dim=2)), item_id="video_id")
    offsets = np.array([0, 3, 4])
    asked = LoadRequests({"who": np.array([0, 1])}, {"video_id": np.array([1, 1, 2, 0])}, offsets)
    scores = [np.full(count, expected, np.float32) for count in np.diff(offsets)]
    return Workload(
        "fake", features, Path("/"), {}, np.zeros((9, 2), np.float32), {"who": 1, "video_id": 3}, asked, scores
    )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a peer that needs no environment."""
    monkeypatch.setitem(SERVING_PEERS, "fake", _Fake)
    return "fake"


def test_a_peer_is_started_checked_asked_paused_and_ended(fake: str) -> None:
    peer = PeerServer(fake, _workload(0.5), delay_ms=0)
    with peer:
        before_s = peer.cpu_s()

        def is_measured() -> bool:
            found = peer.load.run(LoadPlan("closed", 2, 1))
            assert found.ok == found.due > 0
            return peer.cpu_s() > before_s

        wait_until(is_measured, "CPU time of the peer")
        peer.pause()
        still = peer.load.run(LoadPlan("closed", 1, 1, deadline_ms=100))
        assert still.ok == 0
        peer.resume()
        assert peer.load.run(LoadPlan("constant", 20, 1)).ok == 20
        load = peer.load
    with pytest.raises(ServiceError):
        load.ask(0)


def test_of_some_delays_the_one_that_answers_most_is_found(fake: str) -> None:
    notes: list[str] = []
    # The fake one does as it is told: it waits for so long.
    wait_until(lambda: best_delay_ms(fake, _workload(0.5), notes.append, [100, 0]) == 0, "the delay to be found")
    assert [note.partition(" ms")[0] for note in notes[-2:]] == [f"peer fake with a delay of {ms}" for ms in (100, 0)]


def test_a_peer_of_other_scores_is_not_measured(fake: str) -> None:
    peer = PeerServer(fake, _workload(0.6), delay_ms=0)
    with pytest.raises(ServiceError, match=r"fake scores request 0 as \[0.5 0.5 0.5\], expected \[0.6 0.6 0.6\]"):
        peer.start()
    peer.close()  # which it was already


def test_a_peer_that_does_not_start_is_told_with_its_log(fake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "_SCRIPT", "raise SystemExit('no such model')")
    with pytest.raises(ServiceError, match=r"fake ended with status 1(.|\n)*no such model"):
        PeerServer(fake, _workload(0.5), delay_ms=0).start()


def test_peers_whose_environments_cannot_be_built_are_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STREAMLEARN_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / SERVING_PEERS["triton"]().environment.entry).mkdir()
    notes: list[str] = []
    assert ready_servers(["mosec", "triton"], notes.append) == ["triton"]
    assert any("peer mosec is not available, so its ratios are missing: no uv" in note for note in notes)


def test_triton_is_told_to_merge_requests_of_any_length(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    server = packages / "pytriton" / "tritonserver"
    for part in ("backends/python/libtriton_python.so", "python_backend_stubs/3.11/triton_python_backend_stub"):
        (server / part).parent.mkdir(parents=True)
        (server / part).touch()
    triton, folder = SERVING_PEERS["triton"](), tmp_path / "serves"
    command, _ = triton.command(python, folder, 2, 3)
    assert command[0] == str(server / "bin" / "tritonserver")
    assert f"--grpc-port={triton.address().partition(':')[2]}" in command
    assert {one.name for one in (folder / "backends" / "python").iterdir()} == {
        "libtriton_python.so",
        "triton_python_backend_stub",
    }
    config = (folder / "models" / "model" / "config.pbtxt").read_text()
    assert "allow_ragged_batch: true" in config
    assert "count: 2 kind: KIND_CPU" in config
    assert "max_queue_delay_microseconds: 3000" in config
    assert str(Path(serving_peers.__file__).parents[2]) in (folder / "models" / "model" / "1" / "model.py").read_text()
