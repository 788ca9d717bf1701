"""Reads of computed columns in turns with a peer: the same requests, values that are counted, and a peer that ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import online_reads
from benchmarks.online_reads import Reads, ReadsOfPeer, compare_reads, ratios
from benchmarks.peers.environment import Environment
from benchmarks.result import Result
from streamlearn.errors import ServiceError, StatesUnreachable
from streamlearn.online import ComputedFeatures, FeatureReader, FilledRequest

__all__: list[str] = []

# A peer that says how many users and items it was given, and reads more slowly than any machine.
_PEER = """
import json, pathlib, sys
workload = json.loads((pathlib.Path(sys.argv[-1]) / "workload.json").read_text())
print(json.dumps({"way": "calls"}), flush=True)
for line in sys.stdin:
    counts = len(workload["user"]["user_id"]), len(workload["item"]["rates"])
    print(json.dumps({"durations_s": [250.0, 750.0], "counts": counts}), flush=True)
"""


class _Reader(FeatureReader):
    """A reader without a store: each user has three values, each item two."""

    outcome: Any = "known"

    def __init__(self) -> None: ...

    def users(self, ids: Sequence[Any], at_ms: int | None = None) -> ComputedFeatures:
        return ComputedFeatures((self.outcome,) * len(ids), {"seen": [[1, 2]] * len(ids), "pause": [7] * len(ids)})

    def items(self, ids: Sequence[Any], at_ms: int | None = None) -> ComputedFeatures:
        return ComputedFeatures((self.outcome,) * len(ids), {"rates": [[0.5, 0.25]] * len(ids)})

    def fill(self, user: dict[str, Any], items: Sequence[dict[str, Any]], at_ms: int | None = None) -> FilledRequest:
        return FilledRequest(self.outcome, at_ms or 0)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_REQUESTS": 20, "_TURN_S": 0.01, "_TURNS": 2}.items():
        monkeypatch.setattr(online_reads, name, value)


def _peer(script: str, folder: Path) -> ReadsOfPeer:
    return ReadsOfPeer([sys.executable, "-I", "-S", "-c", script, str(folder)], folder)


def _compare(script: str, monkeypatch: pytest.MonkeyPatch, reader: FeatureReader) -> tuple[Result, list[str]]:
    monkeypatch.setattr(online_reads, "ready_environments", lambda *given: ["feast"])
    monkeypatch.setattr(Environment, "build", lambda *given: Path(sys.executable))
    monkeypatch.setattr(online_reads, "ReadsOfPeer", lambda command, folder: _peer(script, folder))
    result, notes = Result("features"), list[str]()
    compare_reads(reader, reader, "127.0.0.1:1", result, notes.append, users=1_000, at_ms=0)
    return result, notes


def test_both_sides_have_figures_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    result, notes = _compare(_PEER, monkeypatch, _Reader())
    assert notes == ["reading in turns with feast: calls"]
    assert result.figures["feast_p50_ms"] == 500_000
    sides, ratios_ = ("reader", "uncached", "feast"), ("ratio_feast_values", "ratio_feast_p99")
    assert set(result.figures) == {f"{side}_{quantile}_ms" for side in sides for quantile in ("p50", "p99")}
    assert set(result.ratios) == {f"{name}{of}" for name in ratios_ for of in ("", "_uncached")}
    assert all(ratio > 1 for ratio in result.ratios.values())


def test_a_peer_that_ends_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    result, notes = _compare("raise SystemExit('no such view')", monkeypatch, _Reader())
    assert not result.figures
    assert not result.ratios
    assert "peer feast is left out: it ended; its stderr ends with\n  no such view" in notes[0]


def test_reads_of_ours_without_values_are_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = _Reader()
    reader.outcome = "unavailable"
    with pytest.raises(StatesUnreachable, match="took too long"):
        _compare(_PEER, monkeypatch, reader)


def test_a_peer_that_ends_after_a_turn_is_named(tmp_path: Path) -> None:
    script = """print('{"way": "calls"}\\n{"durations_s": [0.5]}', flush=True); raise SystemExit('killed')"""
    with _peer(script, tmp_path) as peer:
        peer._process.wait(120)
        with pytest.raises(ServiceError, match="it ended"):
            peer.turn(1.0)


def test_rates_are_of_the_time_in_reads_and_ratios_above_one_are_ours() -> None:
    ours, peer = Reads(np.array([0.1, 0.1]), 40), Reads(np.array([0.5, 0.5]), 40)
    assert ours.values_per_s() == 200
    assert ratios(ours, peer) == {"ratio_feast_values": pytest.approx(5), "ratio_feast_p99": pytest.approx(5)}
