"""The README's Python is run as a newcomer would: write the application, make its topics, send events."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_readmes_application_and_producer_work(tmp_path: Path) -> None:
    application, producer = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "app.py").write_text(application)
    (tmp_path / "produce.py").write_text(producer)
    _run(tmp_path, "-m", "streamlearn", "topics", "shop", "--create", "2")
    _run(tmp_path, "produce.py")
    seen = _run(tmp_path, "-m", "streamlearn", "peek", "shop")
    assert '"brand": "acme"' in seen


def _run(folder: Path, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
