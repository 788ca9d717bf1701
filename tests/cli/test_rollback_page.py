"""The page on rollbacks: its programs and its commands are run as they stand, in order."""

from __future__ import annotations

import re
from pathlib import Path

from tests.pages import ROOT, walk

_S_MAX = 600  # it only ends what hangs


def test_a_newcomer_gets_through_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operating" / "rollback.md").read_text()
    trainer, node = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    shell = re.findall(r"^```sh\n(.*?)^```", page, flags=re.M | re.S)
    assert len(shell) == 10
    (tmp_path / "trainer.py").write_text(trainer)
    (tmp_path / "node.py").write_text(node)
    said = walk(tmp_path, "".join(shell), s_max=_S_MAX, PYTHONWARNINGS="error")
    assert len(re.findall(r"^node-[12] +acted", said, flags=re.M)) == 14, said
    assert "exit status 1" in said
    assert "a base of" in said
