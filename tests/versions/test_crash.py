"""A writer that is killed leaves no version and no half file, whenever it dies; and the next one writes the version."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from streamlearn.versions import open_store

STEPS = 200


def test_a_writer_killed_at_any_write_leaves_no_half_file_and_no_version(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.versions.crashes", str(tmp_path / "store"), "0", str(STEPS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    ends = [tuple(one) for one in json.loads(done.stdout)]
    killed = [is_committed for signal_number, is_committed in ends if signal_number == signal.SIGKILL]
    # Every step of a whole write was tried: the last writer found nothing left to die at.
    assert ends[-1] == (0, True)
    assert ends[0] == (signal.SIGKILL, False)
    # The link of the manifest commits; what dies later dies after the commit.
    assert sorted(killed) == killed
    # Eight files, each written, linked, its first name taken away.
    assert len(killed) >= 8 * 3
    assert 0 < sum(killed) < 10


def test_what_killed_writers_left_is_recognised_and_swept(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.versions.crashes", str(tmp_path / "store"), "0", "30"]
    subprocess.run(command, capture_output=True, timeout=600, check=True)
    store = open_store(str(tmp_path / "store"))
    folder = "ctr/deltas/000000000002-00000001/rows"
    found = store.leftovers(folder)
    assert found
    for name in found:
        store.sweep(folder, name)
    assert store.leftovers(folder) == []
