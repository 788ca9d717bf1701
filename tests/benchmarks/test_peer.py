"""Asking a peer: an answer is taken, and a peer that fails, hangs or prints rubbish is named."""

from __future__ import annotations

import os
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from benchmarks.peers.answer import Order
from benchmarks.peers.environment import Environment
from benchmarks.peers.peer import PEERS, PeerProcess, ask, ready_peers, run_peer
from streamlearn.errors import ServiceError, UsageError
from tools.services.cache import Cache

__all__: list[str] = []

_ORDER = Order("fake", 100_000, ("fill",), seed=3, wait_s_max=300.0)


def _ask(script: str, order: Order = _ORDER, cores: int = 1) -> dict[str, float]:
    return ask([sys.executable, "-I", "-S", "-c", f"import json, os, sys\n{script}"], order, cores)


def test_an_order_survives_being_an_argument() -> None:
    assert Order.parse(_ORDER.text()) == _ORDER


def test_the_last_line_is_the_answer() -> None:
    script = "print('noise'); print('more', file=sys.stderr); print(json.dumps({'a_per_s': 1.5, 'b': 2}))"
    assert _ask(script) == {"a_per_s": 1.5, "b": 2.0}


def test_a_peer_gets_its_order_and_its_cores() -> None:
    script = (
        "order = json.loads(sys.argv[1])\n"
        "print(json.dumps({'keys_count': order['keys_count'], 'cores': len(os.sched_getaffinity(0))}))"
    )
    before = os.sched_getaffinity(0)
    assert _ask(script) == {"keys_count": 100_000.0, "cores": 1.0}
    assert os.sched_getaffinity(0) == before


def test_a_peer_goes_on_when_it_is_its_turn() -> None:
    script = (
        "for window in range(3):\n"
        "    print('noise'); print(json.dumps({'window': window} if window else {}), flush=True)\n"
        "    sys.stdin.readline()\n"
        "print(json.dumps({'windows': 2}))"
    )
    order = Order("fake", 100_000, ("learn",), in_turns=True, wait_s_max=300.0)
    with closing(PeerProcess([sys.executable, "-I", "-S", "-c", f"import json, sys\n{script}"], order, 1)) as peer:
        assert [peer.turn() for _ in range(3)] == [{}, {"window": 1.0}, {"window": 2.0}]
        assert peer.end() == {"windows": 2.0}


def test_a_peer_that_ends_before_its_turn_is_named() -> None:
    order = Order("fake", 100_000, ("learn",), in_turns=True, wait_s_max=300.0)
    script = "import sys; print('{}', flush=True); sys.stdin.readline(); sys.exit('no memory')"
    with closing(PeerProcess([sys.executable, "-I", "-S", "-c", script], order, 1)) as peer:
        assert peer.turn() == {}
        with pytest.raises(ServiceError, match=r"peer fake ended with status 1(.|\n)*no memory"):
            peer.turn()


def test_a_peer_sees_no_packages_of_ours_and_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    script = (
        "seen = [name in os.environ for name in ('PYTHONPATH', 'OMP_NUM_THREADS')]\n"
        "print(json.dumps({'seen': sum(seen), 'hidden': len(os.environ['CUDA_VISIBLE_DEVICES'])}))"
    )
    assert _ask(script) == {"seen": 0.0, "hidden": 0.0}


def test_a_peer_that_fails_is_named_with_the_end_of_its_stderr() -> None:
    with pytest.raises(ServiceError, match=r"peer fake ended with status 1(.|\n)*3 rows differ from the inserted ones"):
        _ask("print(json.dumps({'a': 1.0}), flush=True); sys.exit('3 rows differ from the inserted ones')")


def test_a_peer_that_is_killed_is_named() -> None:
    with pytest.raises(ServiceError, match="peer fake ended with status -9"):
        _ask("os.kill(os.getpid(), 9)")


def test_a_peer_that_hangs_is_ended(tmp_path: Path) -> None:
    script = f"import signal; signal.pause()  # {tmp_path}"
    with pytest.raises(ServiceError, match="peer fake took longer than 2 s"):
        _ask(script, Order("fake", 100_000, ("fill",), wait_s_max=2.0))
    commands = list[bytes]()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # one that ends meanwhile
            commands.append(process.read_bytes())
    assert not any(str(tmp_path).encode() in command for command in commands)


@pytest.mark.parametrize(
    "printed",
    ["", "nothing of use", "[1.0]", "{}", '{"a": "fast"}', '{"a": true}', '{"a": NaN}', '{"a": Infinity}', '{"a": 1.0'],
)
def test_rubbish_is_no_answer(printed: str) -> None:
    with pytest.raises(ServiceError, match=r"peer fake answered .* instead of a line of figures"):
        _ask(f"print({printed!r})")


@pytest.mark.parametrize(
    ("keys_count", "cores", "figures", "match"),
    [
        (100_000, 1, ["rowwise"], "does not measure rowwise"),
        (100_000, 1, [], "does not measure nothing"),
        (100_001, 1, ["fill"], "not a multiple of a batch"),
        (0, 1, ["fill"], "not a multiple of a batch"),
        (100_000, 0, ["fill"], "0 cores are requested"),
        (100_000, 4_096, ["fill"], "4096 cores are requested"),
        (100_000, 2, ["fill", "latency"], "latency is requested together with 1 other"),
        (100_000, 1, ["latency"], "1 cores are requested, outside of 2"),
    ],
)
def test_what_no_peer_can_do_is_refused_before_anything_is_built(
    keys_count: int, cores: int, figures: list[str], match: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STREAMLEARN_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match=match):
        run_peer("tfra", keys_count=keys_count, cores=cores, figures=figures, note=lambda text: None)
    assert not list(tmp_path.iterdir())


def test_a_peer_whose_environment_cannot_be_built_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STREAMLEARN_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    there = tmp_path / PEERS["torch_static"].environment.entry
    there.mkdir()
    notes: list[str] = []
    assert ready_peers(["tfra", "torch_static"], notes.append) == ["torch_static"]
    assert any("peer tfra is not available, so its ratios are missing: no uv" in note for note in notes)


@pytest.mark.parametrize(
    "name", sorted({*(peer.environment.name for peer in PEERS.values()), "feast", "mosec", "triton", "vectors"})
)
def test_an_environment_is_pinned_with_hashes_and_named_by_them(name: str) -> None:
    environment = Environment(name)
    lines = environment.lock.read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert pins
    assert all("==" in pin and pin.endswith("\\") for pin in pins)
    assert not any(line.startswith("-") or "://" in line for line in lines)
    assert environment.entry.startswith(f"peer-{name}-python-3.11-")
    assert environment.find(Cache(Path("/nowhere"))) is None


def test_every_peer_has_a_script_of_its_own() -> None:
    for peer in PEERS.values():
        script = Path(__file__).parent.parent.parent / f"{peer.module.replace('.', '/')}.py"
        text = script.read_text()
        assert all(f'"{figures}": _{figures}' in text for figures in peer.figures)
