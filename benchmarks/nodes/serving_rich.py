"""What everything that a model may have besides costs a node: DIN without and with it, measured by turns."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.nodes.serving_bare import export
from benchmarks.nodes.serving_load import cpu_us
from benchmarks.nodes.serving_parts import Parts, Sizes
from benchmarks.result import Result

__all__ = ["rich_figures"]

_ROUNDS, _SECONDS = 25, 2


def rich_figures(note: Callable[[str], None]) -> dict[str, float]:
    """Return the processor time of an answer with dropout, norm, a cross and calibrations, divided by that without."""
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder:
        place = Path(folder)
        export(place / "graphs")
        parts = Parts(Sizes(), note, Result("models"), place)
        plain, rich = (parts.model(name) for name in ("serving_din", "serving_din_rich"))
        with parts.node(plain, "plain") as one, parts.node(rich, "rich") as other:
            pairs = [(node, parts.load(model, node)) for model, node in ((plain, one), (rich, other))]
            used = [[0.0, 0.0] for _ in range(_ROUNDS)]
            for node, _ in pairs:
                node.process.pause()
            for at, round in enumerate(used):
                for number in (0, 1) if at % 2 else (1, 0):
                    node, load = pairs[number]
                    node.process.resume()
                    round[number] = cpu_us(load, node.cpu_s, _SECONDS)
                    node.process.pause()
            for node, _ in pairs:
                node.process.resume()
    return {
        "rich.node_cpu_us": statistics.median(with_all for _, with_all in used),
        "cpu_to_before": statistics.median(with_all / without for without, with_all in used),
    }
