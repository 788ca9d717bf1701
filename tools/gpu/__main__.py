"""`make gpu-kit`: exports a kit in this environment, and proves it on processors in another one, without TensorFlow."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.environment import Environment
from streamlearn.errors import StreamlearnError
from tools.services.cache import Cache

__all__ = ["ENVIRONMENT", "main"]

ENVIRONMENT = Environment("jax", folder=Path(__file__).parent)
"""JAX for processors; the file `requirements-jax.in` beside this one says which."""


def main(words: list[str]) -> int:
    """Export, prove, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the kit and the logs; it is replaced")
    parser.add_argument("--quick", action="store_true", help="few shapes, each measured for a moment")
    options = parser.parse_args(words)
    quick = ["--quick"] if options.quick else []
    try:
        python = ENVIRONMENT.build(Cache())
    except StreamlearnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    shutil.rmtree(options.out, ignore_errors=True)
    kit = options.out / "kit"
    commands = (
        [sys.executable, "-m", "tools.gpu.export", "--out", str(kit), *quick],
        [str(python), "-m", "tools.gpu.prove", "--cpu", "--kit", str(kit), "--out", str(options.out / "proof"), *quick],
    )
    for command in commands:
        if status := subprocess.run(command, env=os.environ, check=False).returncode:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
