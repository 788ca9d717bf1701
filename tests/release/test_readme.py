"""The README's way from an application to an answer, with what the wheel brings and outside the source."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from streamlearn.testing import wait_until
from tests.release.conftest import Install
from tools.release.licences import ROOT

_WAIT_S = 300.0


def test_train_and_serve(install: Install, tmp_path: Path, prism: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    application, producer = re.findall(r"^```python\n(.*?)^```", readme, flags=re.M | re.S)
    section = readme.partition("### Train and serve\n")[2].partition("\n### ")[0]
    up, curl, *_ = re.findall(r"^```sh\n(.*?)^```", section, flags=re.M | re.S)
    (shown,) = re.findall(r"^```json\n(.*?)^```", section, flags=re.M | re.S)
    assert up.split() == ["streamlearn", "up", "shop"]
    # TensorFlow for processors learns too.
    environment = install("ingest,serve")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "app.py").write_text(application)
    (tmp_path / "produce.py").write_text(producer)
    for words in (("streamlearn", "topics", "shop", "--create", "4"), ("python", "produce.py")):
        done = environment.run(tmp_path, *words)
        assert done.returncode == 0, done.stderr
    imported = environment.run(tmp_path, "python", "-c", "import streamlearn; print(streamlearn.__file__)").stdout
    assert Path(imported).is_relative_to(environment.folder)
    changes = (f"ingest.prism_location={prism}", "front.listen=127.0.0.1:0", "front.http=127.0.0.1:0")
    options = [
        word for change in (*changes, "front.deadline_ms=30000", "telemetry.listen=") for word in ("--set", change)
    ]
    with environment.running(tmp_path, r"shop is up: .*node-1 http ([^,\s]+)", *up.split(), *options) as http:

        def answer() -> dict[str, Any]:
            script = curl.replace("127.0.0.1:8000", http)
            asked = subprocess.run(["bash", "-euc", script], stdout=subprocess.PIPE, text=True, check=True)
            return dict(json.loads(asked.stdout))

        first = answer()
        assert first.keys() == json.loads(shown).keys()
        assert first["version"] >= 1
        # The click was learned: it is in the version of the next minute.
        wait_until(lambda: answer()["version"] > 1, "a version that learned", _WAIT_S)
        clicked, other = answer()["scores"]["click"]
        assert clicked > other
