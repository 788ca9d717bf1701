"""Whatever happens to a model, nodes answer with the trainer's rows of every version they are moved to, bit by bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamlearn.table import RowType
from tests.versions.life import Life

# A long life, and short ones; LIFE_SEEDS=100 lives so many long ones, LIFE_VERSIONS=200 makes them longer.
_LONG, _SHORT = int(os.environ.get("LIFE_VERSIONS", "50")), 30
_SEEDS = int(os.environ.get("LIFE_SEEDS", "1"))
_LIVES = [(seed, "float32", _LONG) for seed in range(3, 3 + _SEEDS)] + [(2, "float16", _SHORT), (4, "int8", _SHORT)]


@pytest.mark.parametrize(("seed", "row_type", "versions"), _LIVES)
def test_nodes_answer_with_the_trainers_rows_at_every_version_they_are_moved_to(
    tmp_path: Path, seed: int, row_type: RowType, versions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing here is about what a loss of power leaves, and waiting for the disk would be most of the time.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    life = Life(tmp_path, seed, row_type)
    life.run(versions, times=2 if versions == _LONG else 1)
    assert len(life.activated) > versions // 6
    life.close()
