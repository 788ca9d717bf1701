"""News: the way from the log of `examples/news` to the table of `evaluate --every`, as commands, and its figures."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from streamlearn.errors import ServiceError
from tools.services import prism_path

__all__ = ["news_figures"]

_ROOT = Path(__file__).parent.parent.parent
_NEWS, _EVERY, _TIMEOUT_S = _ROOT / "examples" / "news", "1m,1h,1d,never", 600


def news_figures(options: tuple[str, ...], note: Callable[[str], None]) -> dict[str, float]:
    """Return how long the commands take, and the AUC of each interval; `options` are words for `replay`."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "news"
        shutil.copytree(_NEWS, folder, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        seconds, table = 0.0, ""
        for verb, *words in (
            ("replay", "--speed", "0", *options),
            ("topics", "--create", "4"),
            ("ingest", "--runner", "prism", "--set", f"ingest.prism_location={prism_path()}"),
            ("evaluate", "--every", _EVERY, "--json"),
        ):
            command = [sys.executable, "-m", "streamlearn", verb, str(folder), *words]
            begun_s = time.perf_counter()
            done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
            wall_s, table = time.perf_counter() - begun_s, done.stdout
            if done.returncode:
                message = f"`streamlearn {verb}` ended with status {done.returncode}: {done.stderr[-2_000:]}"
                raise ServiceError(message, help="run the commands of examples/news/README.md one by one")
            note(f"news: {verb} took {wall_s:.1f} s")
            seconds += wall_s
    intervals = [found for found in json.loads(table)["intervals"] if not found["segment"]]
    return {"evaluate_table_s": seconds} | {f"news.auc_{found['every']}": found["auc"] for found in intervals}
