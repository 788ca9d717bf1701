"""Prove: runs a kit's graphs on this machine's device, checks them against their goldens, and prints all figures.

It needs JAX and NumPy, and neither TensorFlow nor a network. The last line of stdout is one JSON object. The exit
status is 1 if a graph differs from its goldens or a part failed, and 2 if there is no such device.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tools.gpu.report import Report

if TYPE_CHECKING:
    from tools.gpu.kit import Kit
    from tools.gpu.pjrt import Executable, Pjrt

__all__ = ["main"]

_ROOT = Path(__file__).parents[2]
_PARTS = ("machine", "score", "lanes", "step", "shards")
_LANES = {"cpu": (1, 2, 4), "gpu": (1, 2, 4, 8)}
_SHARDS = {"cpu": 2, "gpu": 4}
_SECONDS, _QUICK_S = 0.5, 0.05


class _How(NamedTuple):
    """How to measure: on which platform, for how long each figure, and which parts."""

    platform: str
    seconds: float
    only: list[str]


def main(words: list[str]) -> int:
    """Measure, and return the exit status."""
    parser = argparse.ArgumentParser(prog="prove", description=__doc__)
    device = parser.add_mutually_exclusive_group(required=True)
    device.add_argument("--cpu", action="store_true", help="run on processors, which shows that the kit works")
    device.add_argument("--gpu", action="store_true", help="run on the first GPU")
    parser.add_argument("--kit", type=Path, default=_ROOT / "kit", help="the folder of the kit")
    parser.add_argument("--out", type=Path, default=Path("gpu-proof"), help="the folder of logs and executables")
    parser.add_argument("--quick", action="store_true", help="measure each figure for a moment only")
    parser.add_argument("--tf32", action="store_true", help="multiply matrices in TF32 where the device has it")
    parser.add_argument("--only", action="append", choices=_PARTS, help="a part; may be repeated; by default all")
    options = parser.parse_args(words)
    _prepare(options.out)
    from tools.gpu.kit import Kit
    from tools.gpu.pjrt import Pjrt

    how = _How("gpu" if options.gpu else "cpu", _QUICK_S if options.quick else _SECONDS, options.only or [*_PARTS])
    try:
        kit, pjrt = Kit.read(options.kit), Pjrt(how.platform, has_tf32=options.tf32)
    except (OSError, ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        print("help: give a kit with --kit, and install a JAX that has this device", file=sys.stderr)
        return 2
    report = Report(options.out.absolute())
    releases = ", ".join(f"{name} {kit.about[name]}" for name in ("streamlearn", "tensorflow"))
    report.note(f"kit: {len(kit.graphs)} graphs of {releases}")
    _measure(kit, pjrt, report, how)
    return report.finish(has_bars=options.gpu)


def _measure(kit: Kit, pjrt: Pjrt, report: Report, how: _How) -> None:
    from tools.gpu.machine import inventory
    from tools.gpu.scoring import compile_all, run_lanes, score
    from tools.gpu.step import learn

    executables: dict[str, Executable] = {}
    lanes = _LANES[how.platform][: 2 if how.seconds < _SECONDS else None]
    parts: dict[str, Callable[[], None]] = {
        "machine": lambda: inventory(pjrt, report, is_small=how.platform == "cpu"),
        "compile": lambda: executables.update(compile_all(kit, pjrt, report)),
        "score": lambda: score(kit, pjrt, executables, report, how.seconds),
        "lanes": lambda: run_lanes(kit, how.platform, report, lanes, 10 * how.seconds),
        "step": lambda: learn(kit, pjrt, executables, report, how.seconds),
        "shards": lambda: _end_to_end(kit, pjrt, executables, report, how),
    }
    for name, run in parts.items():
        if name in how.only or name == "compile":
            with report.part(name):
                run()


def _end_to_end(kit: Kit, pjrt: Pjrt, executables: dict[str, Executable], report: Report, how: _How) -> None:
    try:
        from tools.gpu.shards import end_to_end
    except Exception as error:  # on another processor or an older system; the other parts need no native module
        report.unmeasured["end_to_end_samples_per_s"] = f"there is no native module: {error}"
        return
    end_to_end(kit, pjrt, executables, report, (_SHARDS[how.platform], 20 * how.seconds))


def _prepare(out: Path) -> None:
    """Set what JAX reads when it is loaded.

    All processes choose the kernels that the first one measured, and none takes the device's memory in advance.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    flags, folder = os.environ.get("XLA_FLAGS", ""), out.absolute() / "autotune"
    if "autotune_cache_dir" not in flags:
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_per_fusion_autotune_cache_dir={folder}".strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
