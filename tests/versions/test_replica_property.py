"""Whatever happens to a model, nodes answer with the trainer's rows of every version they are moved to, bit by bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamlearn.table import RowType
from tests.versions.life import Life


@pytest.mark.parametrize(("seed", "row_type", "versions"), [(1, "float32", 200), (2, "float16", 40), (4, "int8", 40)])
def test_nodes_answer_with_the_trainers_rows_at_every_version_they_are_moved_to(
    tmp_path: Path, seed: int, row_type: RowType, versions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing here is about what a loss of power leaves, and waiting for the disk would be most of the time.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    life = Life(tmp_path, seed, row_type)
    life.run(versions, times=2 if versions >= 200 else 1)
    assert len(life.activated) > versions // 6
    life.close()
