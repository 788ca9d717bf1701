"""`make demo-real`: the demo on a real Kafka, Redis, Flink and Envoy of this machine, which it starts and stops."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tools.services.cache import Cache
from tools.services.envoy import Envoy
from tools.services.ports import LOOPBACK, free_ports
from tools.services.real_services import start_services

__all__ = ["main"]


def main(words: list[str]) -> int:
    """Run `streamlearn demo` with these further arguments, and return its exit status."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamlearn-services-")))
        print("starting Kafka, Redis and Flink; Envoy comes with the loop", file=sys.stderr, flush=True)
        _, changes = start_services(place, stack)
        # Callers reach the nodes through Envoy.
        changes += (f"access.listen={LOOPBACK}:{free_ports(1)[0]}",)
        envoy = Envoy.fetch(Cache())
        environment = {**os.environ, "PATH": f"{envoy.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        command = [sys.executable, "-m", "streamlearn", "demo", *words]
        command += [word for change in changes for word in ("--set", change)]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
