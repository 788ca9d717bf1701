"""Result: the figures of a benchmark, and their line of JSON."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import streamlearn

__all__ = ["Result", "machine"]


@dataclass
class Result:
    """Figures of one run.

    Attributes:
        bench: The benchmark's name.
        figures: Absolute figures, each with its unit in its name.
        ratios: This project against a peer on the same inputs in the same run; above 1 this project is faster.
        failures: Figures of this project that could not be measured; the command then fails.
        unmeasured: Figures whose requirements are missing on this machine, each with the reason.
    """

    bench: str
    figures: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    unmeasured: dict[str, str] = field(default_factory=dict)

    def take(self, other: Result, prefix: str) -> None:
        """Take the figures of a part, whose names begin with a prefix here."""
        self.figures |= {prefix + name: value for name, value in other.figures.items()}
        self.ratios |= {prefix + name: value for name, value in other.ratios.items()}
        self.unmeasured |= {prefix + name: why for name, why in other.unmeasured.items()}
        self.failures += [prefix + name for name in other.failures]

    def line(self) -> str:
        """Return the last line of stdout."""
        return json.dumps(
            {
                "bench": self.bench,
                "machine": machine(),
                "figures": {name: _rounded(value) for name, value in self.figures.items()},
                "ratios": {name: _rounded(value) for name, value in self.ratios.items()},
                **({"not measured": self.unmeasured} if self.unmeasured else {}),
            }
        )


def machine() -> dict[str, Any]:
    """Return a description of this machine, without which absolute figures mean nothing."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "streamlearn": streamlearn.__version__,
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line.partition(":") for line in info.read_text().splitlines()]
        fields = {name.strip(): value.strip() for name, _, value in lines}
        return f"{fields.get('model name', 'unknown')} (family {fields.get('cpu family', '?')})"
    return platform.processor() or platform.machine()


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
