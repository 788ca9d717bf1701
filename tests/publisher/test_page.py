"""The page on publishing: its Python is run as it stands, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_examples_of_the_page_on_publishing_hold(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operating" / "publishing.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    assert len(blocks) == 6
    (tmp_path / "page.py").write_text("".join(blocks))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-W", "error", "page.py"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["page.py"]


def test_every_metric_the_page_names_is_one() -> None:
    from streamlearn.publisher.meters import Meters
    from streamlearn.testing import ManualClock

    meters = Meters(ManualClock())
    names = {one._name for one in vars(meters).values() if hasattr(one, "_name")}
    page = (ROOT / "docs" / "operating" / "publishing.md").read_text().partition("## Metrics")[2]
    for name in re.findall(r"`([a-z_]+_(?:total|seconds|ratio|version|bytes|rows))`", page):
        full = f"streamlearn_publisher_{name.removesuffix('_total')}"
        assert full in names or name == "since_committed_seconds", name
