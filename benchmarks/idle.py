"""What an idle application costs: the processor time of `streamlearn up` with default settings, without events."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.result import Result
from streamlearn.apps import AppFolder, load_app
from streamlearn.apps.folder import TOPICS
from streamlearn.errors import ServiceError
from streamlearn.testing import wait_until
from streamlearn.topics import create_topic
from tools.services import Kafka, prism_path

__all__ = ["TARGETS", "run"]

Note = Callable[[str], None]

TARGETS = {"files.core_share": 0.03, "kafka.core_share": 0.08}
"""Upper bounds of figures: shares of one core, without the runner."""
_APP = "from streamlearn.testing import small_app\n\napp = small_app()\n"
_PARTITIONS, _UP_S_MAX = 4, 120.0
_TICKS = os.sysconf("SC_CLK_TCK")


def run(quick: bool, note: Note) -> Result:
    """Measure with topics in files and on Kafka."""
    result = Result("idle")
    settle_s, measured_s = (10.0, 10.0) if quick else (60.0, 120.0)
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as name, ExitStack() as stack:
        place = Path(name)
        for kind in ("files", "kafka"):
            changes = [f"ingest.prism_location={prism_path()}", "front.listen=127.0.0.1:0", "front.http=127.0.0.1:0"]
            changes.append("telemetry.listen=")
            if kind == "kafka":
                try:
                    kafka = stack.enter_context(Kafka.start(place / "broker"))
                except ServiceError as error:
                    result.unmeasured[kind] = str(error).splitlines()[0]
                    continue
                changes.append(f"topics.root=kafka://{kafka.address}")
            folder = _application(place / kind, changes)
            with _up(folder, changes) as process:
                note(f"{kind}: up, settling for {settle_s:.0f} s")
                time.sleep(settle_s)
                before = _seconds(process.pid)
                time.sleep(measured_s)
                after = _seconds(process.pid)
            shares = {part: (after[part] - before.get(part, 0.0)) / measured_s for part in after}
            for part, share in shares.items():
                result.figures[f"{kind}.{part}_core_share"] = share
            result.figures[f"{kind}.core_share"] = sum(share for part, share in shares.items() if part != "prism")
    result.failures += [
        name for name, most in TARGETS.items() if not quick and result.figures.get(name, 0.0) > most
    ]  # fmt: skip
    return result


def _application(place: Path, changes: list[str]) -> AppFolder:
    """Write an application and create its topics."""
    place.mkdir()
    (place / "app.py").write_text(_APP)
    folder = load_app(place, changes)
    for name in TOPICS:
        count = 1 if name == "progress" else _PARTITIONS
        create_topic(folder.topic_url(name), folder.topic_settings(name, count)).close()
    return folder


@contextmanager
def _up(folder: AppFolder, changes: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run the application, ready."""
    words = [sys.executable, "-m", "streamlearn", "up", str(folder.folder)]
    for change in changes:
        words += ["--set", change]
    out = folder.folder / "up.out"
    with out.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: " is up: " in out.read_text(), f"{out} says that it is up", _UP_S_MAX)
        yield process
    finally:
        process.terminate()
        process.wait()


def _seconds(root: int) -> dict[str, float]:
    """Return the processor time of a process and of each kind of its descendants."""
    seconds, parents, parts = dict[int, float](), dict[int, int](), dict[int, str]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, fields = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            words = (stat.parent / "cmdline").read_text().split("\0")
        except OSError:  # it has ended
            continue
        parents[pid], seconds[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS
        parts[pid] = _part(words)
    total = dict[str, float]()
    for pid, used in seconds.items():
        ancestor = pid
        while ancestor not in (root, 0, 1):
            ancestor = parents.get(ancestor, 0)
        if ancestor == root:
            total[parts[pid]] = total.get(parts[pid], 0.0) + used
    return total


def _part(words: list[str]) -> str:
    if Path(words[0]).name.startswith("prism"):
        return "prism"
    return next((word for word in words if word in ("up", "ingest", "train", "serve")), "others")
