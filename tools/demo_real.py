"""`make demo-real`: the demo with a real Kafka, Redis and Flink of this machine, started here and ended with it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tools.services.whole import whole_settings

__all__ = ["main"]


def main(words: list[str]) -> int:
    """Run it.

    Args:
        words: Further arguments of `streamlearn demo`.

    Returns:
        Its exit status.
    """
    with ExitStack() as ends:
        place = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="streamlearn-services-")))
        print("Kafka, Redis and Flink are started", file=sys.stderr, flush=True)
        sets = [word for change in whole_settings(place, ends) for word in ("--set", change)]
        return subprocess.run([sys.executable, "-m", "streamlearn", "demo", *words, *sets], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
