"""Processes that serve: what one leaves in the cache is found by the next, whatever each of them did before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROCESS_S_MAX = 900


def served(task: str, graphs: Path, cache: Path, **settings: Any) -> dict[str, Any]:
    """Run one to its end."""
    given = {"users_buckets": [1, 4], "candidates_buckets": [4, 16], "device": "cpu", "cache_folder": str(cache)}
    order = {"settings": given | settings, "graphs": str(graphs)}
    command = [sys.executable, "-m", "tests.serving.served", task, json.dumps(order)]
    bare = {name: value for name, value in os.environ.items() if name not in ("TF_XLA_FLAGS", "XLA_FLAGS")}
    done = subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, timeout=PROCESS_S_MAX)
    assert done.returncode == 0, "\n".join(reversed(done.stderr.splitlines()))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache that processes share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def cold(exported: Path, cache: Path) -> dict[str, Any]:
    """What the first process says."""
    return served("cold", exported, cache)


def test_shapes_that_come_often_are_compiled_by_a_process_that_may_die(cold: dict[str, Any]) -> None:
    assert cold["started"]["compiles"] == 4
    (first, nice), (second, nice_too) = cold["later"]["processes"]
    assert first != second
    assert nice == nice_too == max(10, os.getpriority(os.PRIO_PROCESS, 0))
    assert cold["later"]["compiles"] == 6
    assert cold["later"]["worst"] < 1e-5
    # This process has compiled none of them: what the other one wrote was found under the same names.
    assert (cold["started"]["files_before"], cold["started"]["files"], cold["later"]["files"]) == (0, 4, 6)


def test_a_second_start_compiles_nothing_and_versions_neither(
    exported: Path, cache: Path, cold: dict[str, Any]
) -> None:
    # Another history, more lanes, and a device for each of them: the names in the cache are the same.
    warm = served("warm", exported, cache, lanes=2, lane_devices="own")
    assert [place.rpartition("/")[2] for place in warm["places"]] == ["device:CPU:0", "device:CPU:1"]
    assert (warm["started"]["files_before"], warm["started"]["files"], warm["scored"]["files"]) == (6, 6, 6)
    assert warm["started"]["compiles"] == warm["scored"]["compiles"] == 8
    assert warm["scored"]["worst"] < 1e-5
    assert warm["started"]["compile_s"] / 2 < cold["started"]["compile_s"]


@pytest.mark.parametrize(
    "statement", ["import streamlearn.serving", "import streamlearn.serving.graphs.compile_process"]
)
def test_tensorflow_is_loaded_only_when_it_is_needed(statement: str) -> None:
    script = f"import sys; {statement}; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
