"""The pages on tables, their server and their versions: their Python is run as it stands, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("page", "blocks_count"),
    [("tables.md", 7), ("packing.md", 4), ("parameter-server.md", 5), ("operating/versions.md", 8)],
)
def test_the_examples_of_a_page_hold(page: str, blocks_count: int, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), flags=re.M | re.S)
    assert len(blocks) == blocks_count
    (tmp_path / "page.py").write_text("".join(blocks))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-W", "error", "page.py"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["page.py"]  # who tries an example keeps a clean folder
