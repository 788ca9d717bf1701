"""Envoy and nodes on several hosts, as network namespaces: a host goes dark while connections to it are open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.chaos.network import apart

_ROOT = Path(__file__).parents[2]


def test_a_host_that_goes_dark_costs_no_answer_and_is_asked_again_when_it_is_back(tmp_path: Path, envoy: Path) -> None:
    command = apart([sys.executable, "-m", "tests.gateway.on_hosts", str(tmp_path), str(envoy)])
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["lost"] == {"http": 0, "grpc": 0}, said
    assert said["ejected_s"] < 20, said
    # What the dark host had is answered by the other one, once its connections count as dead.
    assert max(said["longest_s"].values()) < 25, said
    assert said["after"] == [2], said
    assert said["after_given"] == 0, said
    assert said["after_longest_s"] < 25, said
