"""The page on validation: its Python is run as it stands, and the metrics it names are those there are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from streamlearn.trainer.validation.meters import ScoreMeters

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = (ROOT / "docs" / "validation.md").read_text()


def test_the_examples_of_the_page_hold(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)
    assert len(blocks) == 2
    (tmp_path / "page.py").write_text("".join(blocks))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-W", "error", "page.py"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr


def test_the_page_names_every_metric_and_no_other() -> None:
    there = {one._name.removeprefix("streamlearn_trainer_validation_") for one in vars(ScoreMeters()).values()}
    said = set(re.findall(r"`([a-z_]+)_total`", PAGE)) | set(re.findall(r"`([a-z_]+_(?:ratio|nats|units))`", PAGE))
    assert said == {name.removesuffix("_total") for name in there}
