"""A bound of all joins of a process, in whole jobs on Prism: events wait at it, and what can never fit is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from streamlearn.apps import AppFolder
from tests.ingest.history import fill, learned, outcomes, write_app

DEADLINE_S = 300.0
REQUESTS, LOTS = 800, 2
# Looks are a window's length of event time apart, so that two windows' events come in between.
CHANGES = ("ingest.tick_s=3600",)
RUN = """\
import json, sys, threading
from pathlib import Path

from prometheus_client import REGISTRY
from streamlearn.apps import load_app
from streamlearn.ingest import run_samples

if __name__ == "__main__":
    folder, *changes = sys.argv[1:]
    report = run_samples(load_app(Path(folder), changes), threading.Event(), changes=changes)
    names = ("join_waits_total", "pending_bytes", "pending_ratio")
    found = {name: REGISTRY.get_sample_value(f"streamlearn_ingest_{name}") for name in names}
    print(json.dumps({"counts": dict(report.counts), **found}))
"""


def ran(app: AppFolder, bytes_max: int) -> subprocess.CompletedProcess[str]:
    changes = (*CHANGES, f"join.process_bytes_max={bytes_max}")
    call = [sys.executable, "-c", RUN, str(app.folder), *changes]
    return subprocess.run(call, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


def test_what_has_no_room_in_a_process_waits_or_is_refused_and_then_all_is_learned(prism: Path, tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", prism, lots=LOTS)
    fill(app, 0, REQUESTS, end=True)
    refused = ran(app, 1 << 16)
    assert refused.returncode == 1
    assert "JoinFull: " in refused.stderr
    assert "32768 bytes, the share of each lot in this process of join.process_bytes_max" in refused.stderr
    done = ran(app, 4 << 16)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["join_waits_total"] > 0
    assert found["counts"]["impressions"] >= REQUESTS
    assert found["pending_ratio"] > 0
    assert learned(app) == outcomes(app)
