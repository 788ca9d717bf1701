"""The page of histories as a user follows it: a log becomes events, samples, versions and figures."""

from __future__ import annotations

import re
from pathlib import Path

from tests.pages import ROOT, walk


def test_a_log_is_replayed_and_learned_as_the_page_says(tmp_path: Path, prism: Path) -> None:
    page = (ROOT / "docs" / "operating" / "histories.md").read_text()
    (tmp_path / "films").mkdir()
    for block in re.findall(r"^```(?:python|toml)\n(.*?)^```", page, flags=re.M | re.S):
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
    script = "".join(re.findall(r"^```sh\n(.*?)^```", page, flags=re.M | re.S))
    script = script.replace("--runner prism", f"--runner prism --set ingest.prism_location={prism}")
    said = walk(tmp_path, script, s_max=1_800)
    assert "impressions                5,000" in said
    assert re.search(r"stars  never +[\d,]+ +0\.\d+", said), said
