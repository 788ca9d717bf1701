"""`make demo-real`: the demo on a real Kafka, Redis and Flink of this machine, which it starts and stops."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tools.services.real_services import start_services

__all__ = ["main"]


def main(words: list[str]) -> int:
    """Run `streamlearn demo` with these further arguments, and return its exit status."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamlearn-services-")))
        print("starting Kafka, Redis and Flink", file=sys.stderr, flush=True)
        _, changes = start_services(place, stack)
        options = [word for change in changes for word in ("--set", change)]
        return subprocess.run([sys.executable, "-m", "streamlearn", "demo", *words, *options], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
