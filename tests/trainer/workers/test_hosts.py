"""A job on several hosts, as network namespaces: whatever way is cut, each label is learned once, and training goes on.

After a ShardUnreachable `streamlearn work` ends with status 75: see `test_job`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.chaos.network import apart

_ROOT = Path(__file__).parents[3]
_END_S_MAX = 300.0


def seen(scenario: str, place: Path) -> dict[str, Any]:
    """What was seen when a way was cut; all labels that were sent are learned in the newest version, each once."""
    command = apart([sys.executable, "-m", "tests.trainer.workers.on_hosts", scenario, str(place)])
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_END_S_MAX, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert said["is_equal"], said
    assert said["labels"] > 900, said
    return said


def test_a_leader_goes_on_without_a_worker_that_it_does_not_reach_and_has_it_back_when_it_does(tmp_path: Path) -> None:
    said = seen("leader_and_worker", tmp_path)
    assert said["alone"] == 1, said
    assert said["joined"] in (1, 2), said  # it needs no weights if it held no slice, and missed few steps


@pytest.mark.parametrize(("scenario", "recoveries"), [("worker_and_shards", 1), ("worker_and_shards_with_arrival", 0)])
def test_a_worker_that_does_not_reach_the_shards_leaves_and_the_leader_goes_on(
    tmp_path: Path, scenario: str, recoveries: int
) -> None:
    said = seen(scenario, tmp_path)
    assert said["recoveries"] == recoveries, said
    assert said["error"].startswith("ShardUnreachable: shard "), said


def test_a_worker_ends_when_its_leader_is_away_for_longer_than_it_waits(tmp_path: Path) -> None:
    said = seen("leader_away", tmp_path)
    assert said["error"].startswith("ShardUnreachable: the trainer at 10.77.0.1:7100"), said
