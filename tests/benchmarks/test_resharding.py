"""Resharding, on few rows."""

from __future__ import annotations

from pathlib import Path

from benchmarks.hosts.resharding import resharding_figures


def test_rows_and_their_states_move_between_shards_bit_for_bit(tmp_path: Path) -> None:
    figures = resharding_figures(tmp_path, keys_count=20_000)
    assert figures["reshard_rows_different"] == 0
    assert figures["reshard_rows"] == 20_000
    assert figures["reshard_gb"] > 0.001
    assert figures["reshard_s_per_gb"] >= max(figures["reshard_to_3_s_per_gb"], figures["reshard_to_1_s_per_gb"]) > 0
