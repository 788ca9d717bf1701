"""The page on models: its Python is run as it stands, in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def test_the_examples_of_the_page_hold() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    assert len(blocks) == 11
    # In this process, in which TensorFlow is loaded already.
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile("".join(blocks), "docs/models.md", "exec"), names)
    assert names["scores"].shape == (5, 2)
