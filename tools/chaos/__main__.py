"""`make chaos`: the whole loop under load, with faults by a printed seed; ends with 1 where something did not hold."""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tools.chaos.run import Outcome, Wanted, run
from tools.services.whole import whole

__all__ = ["main"]


def main(words: list[str]) -> int:
    """Run it.

    Args:
        words: Of the command line.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long there is load")
    parser.add_argument("--seed", type=int, help="where chance comes from; one by chance without it")
    parser.add_argument("--real", action="store_true", help="on a real Kafka, Redis and Flink")
    parser.add_argument("--only", action="append", default=[], help="faults whose name has this; may be repeated")
    asked = parser.parse_args(words)
    seed = random.SystemRandom().randrange(1 << 31) if asked.seed is None else asked.seed
    begun_s = time.monotonic()

    def tell(line: str) -> None:
        seconds = int(time.monotonic() - begun_s)
        print(f"{seconds // 60:d}:{seconds % 60:02d}  {line}", flush=True)

    tell(f"chaos with seed {seed}, for {asked.minutes:g} minutes")
    with ExitStack() as ends:
        place = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="streamlearn-chaos-")))
        services, changes = whole(place / "services", ends, has_replicas=True) if asked.real else ({}, ())
        outcome = run(Wanted(asked.minutes * 60, seed, only=tuple(asked.only)), place, services, changes, tell)
    _print(outcome, seed)
    return 1 if outcome.violations else 0


def _print(outcome: Outcome, seed: int) -> None:
    print(f"{'fault':55} {'times':>5} {'median s':>9} {'most s':>7}")
    for name, took_s in sorted(outcome.took_s.items()):
        print(f"{name:55} {len(took_s):5d} {statistics.median(took_s):9.1f} {max(took_s):7.1f}")
    struck = sum(map(len, outcome.took_s.values()))
    print(f"{struck} faults; {outcome.rows:,} rows shown, {outcome.versions} versions")
    print(f"{outcome.asked:,} requests, {outcome.unanswered:,} of them without an answer")
    print(f"{sum(outcome.compared):,} replies of {len(outcome.compared)} versions were held against the store's")
    for one in outcome.violations:
        print(f"VIOLATION: {one}")
    print(f"{len(outcome.violations)} violations, seed {seed}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
