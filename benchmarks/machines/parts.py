"""Parts: each measures some of the figures, if this machine can."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.hosts.parts import TARGETS as HOSTS_TARGETS
from benchmarks.hosts.parts import hosts, resharding, rolling
from benchmarks.machines.release import image, installation
from benchmarks.result import Result
from streamlearn.errors import ServiceError
from tools.kube import kube_figures

__all__ = ["TARGETS", "run"]

Note = Callable[[str], None]

TARGETS = {
    "wheel_to_answer_s": 120.0,
    "environment_gb": 1.6,
    "image_gb": 1.8,
    "helm_objects_refused": 0.0,
} | HOSTS_TARGETS
"""Upper bounds of figures."""
_PARTS: dict[str, tuple[Callable[[Note], dict[str, float]], bool]] = {
    "installation": (installation, False),
    "image": (image, False),
    "kube": (kube_figures, False),
    "rolling": (rolling, False),
    "resharding": (resharding, False),
    "hosts": (hosts, False),
}
"""Each part, and whether it ends within a minute."""


def run(quick: bool, note: Note) -> Result:
    """Measure each part, if this machine can."""
    result = Result("machines")
    for name, (part, is_quick) in _PARTS.items():
        if quick and not is_quick:
            result.unmeasured[name] = "takes more than a minute"
            continue
        try:
            result.figures |= part(note)
        except ServiceError as error:
            result.unmeasured[name] = error.message
    result.failures += [name for name, most in TARGETS.items() if result.figures.get(name, 0.0) > most]
    return result
