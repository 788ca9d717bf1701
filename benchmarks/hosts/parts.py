"""Parts of `python -m benchmarks machines` about several hosts. Each returns its figures by name."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.hosts.resharding import resharding_figures
from benchmarks.hosts.rolling import RollingNode, rolling_figures
from benchmarks.hosts.round_robin import RoundRobin
from benchmarks.nodes.serving_bare import export
from benchmarks.nodes.serving_model import ServingModel
from streamlearn.errors import ServiceError

__all__ = ["TARGETS", "hosts", "resharding", "rolling"]

Note = Callable[[str], None]

TARGETS = {
    "hosts_whole_again_s": 60.0,
    "hosts_lost": 0.0,
    "hosts_doubled": 0.0,
    "hosts_violations": 0.0,
    "rolling_errors": 0.0,
    "rolling_statuses_wrong": 0.0,
    "reshard_rows_different": 0.0,
}
"""Upper bounds of figures."""
_MODEL, _VALUES, _NODES, _MESSAGES = "serving_small", 10_000, 3, 500
_HOSTS_MINUTES, _HOSTS_S_MAX = 15, 2_400.0


def rolling(note: Note) -> dict[str, float]:
    """Restart three nodes, one after the other, at half of what they answer."""
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder, ExitStack() as stack:
        place = Path(folder)
        export(place / "graphs")
        model = ServingModel(_MODEL, place, place / "graphs" / _MODEL, _VALUES)
        version = model.write(0)
        with model.pointing() as pointing:
            pointing.publish(version)
        settings = (
            f"versions.store={model.folder.store_url}",
            f"registry.url={model.registry_url}",
            f"serving.cache_folder={place}/compiled",
            "telemetry.log_level=warning",
            "serving.lanes=1",
        )
        nodes = []
        for number in range(_NODES):
            nodes.append(RollingNode(model.folder.folder, f"node-{number}", place, settings))
            stack.callback(nodes[-1].close)
            nodes[-1].wait_ready()
        messages = model.messages(model.requests(_MESSAGES))
        client = stack.enter_context(RoundRobin([node.address for node in nodes], messages))
        note(f"{_NODES} nodes are restarted one after the other")
        return rolling_figures(nodes, client, None, note)


def resharding(note: Note) -> dict[str, float]:
    """Restore a model of two shards into three and into one."""
    note("rows go from two shards to three, and to one")
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder:
        return resharding_figures(Path(folder))


def hosts(note: Note) -> dict[str, float]:
    """Run the loop on hosts; kill each role once, and cut each host off once.

    Raises:
        ServiceError: This machine cannot make hosts.
    """
    note("the loop runs on six hosts; each role is killed once, and each host is cut off once")
    command = [sys.executable, "-m", "tools.chaos", "--hosts", "--minutes", str(_HOSTS_MINUTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_HOSTS_S_MAX, check=False)
    lines = done.stdout.splitlines()
    for line in lines:
        note(line)
    if not lines or not lines[-1].startswith("{"):
        message = f"the loop on hosts ended with status {done.returncode}: {done.stderr.strip()[-500:]}"
        raise ServiceError(message, help="hosts need network namespaces: run this as root, or allow user namespaces")
    figures: dict[str, float] = json.loads(lines[-1])
    return figures
