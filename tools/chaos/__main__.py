"""`make chaos`: the whole loop under load with random faults from a printed seed; exits with 1 after a violation."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tools.chaos.hosts import figures_of_hosts, run_on_hosts
from tools.chaos.network import APART, apart
from tools.chaos.run import ChaosOptions, Outcome, run
from tools.services.real_services import start_services

__all__ = ["main"]

_RECOVERY_S_MAX, _HOSTS_RECOVERY_S_MAX = 60.0, 180.0


def main(words: list[str]) -> int:
    """Run the test with the words of the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="duration of the load")
    parser.add_argument("--seed", type=int, help="seed of the random faults; random by default")
    parser.add_argument("--real", action="store_true", help="use a real Kafka, Redis and Flink")
    parser.add_argument(
        "--hosts", action="store_true", help="on several hosts: kill each role once, cut each host off once"
    )
    parser.add_argument(
        "--retrieval", action="store_true", help="the application retrieves, and lists of items are checked"
    )
    parser.add_argument(
        "--only", action="append", default=[], help="only faults with this text in their name; may be repeated"
    )
    options = parser.parse_args(words)
    if options.hosts and options.retrieval:
        parser.error("--retrieval runs on one machine: leave out --hosts")
    if options.hosts and APART not in os.environ:
        command = apart([sys.executable, "-m", "tools.chaos", *words])
        return subprocess.run(command, env=os.environ | {APART: "1"}, check=False).returncode
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    begun_s = time.monotonic()

    def on_progress(line: str) -> None:
        seconds = int(time.monotonic() - begun_s)
        print(f"{seconds // 60:d}:{seconds % 60:02d}  {line}", flush=True)

    on_progress(f"chaos with seed {seed}, for {options.minutes:g} minutes")
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamlearn-chaos-")))
        # On hosts the time is a figure, which has a target of its own.
        within_s = _HOSTS_RECOVERY_S_MAX if options.hosts else _RECOVERY_S_MAX
        only = tuple(options.only)
        chaos_options = ChaosOptions(options.minutes * 60, seed, within_s, is_once=options.hosts, only=only)
        chaos_options = replace(chaos_options, is_finding=options.retrieval)
        if options.hosts:
            outcome = run_on_hosts(chaos_options, place, (), on_progress)
        else:
            services, changes = (
                start_services(place / "services", stack, has_replicas=True) if options.real else ({}, ())
            )
            outcome = run(chaos_options, place, services, changes, on_progress)
    _print(outcome, seed)
    if options.hosts:
        print(json.dumps(figures_of_hosts(outcome)))
    return 1 if outcome.violations else 0


def _print(outcome: Outcome, seed: int) -> None:
    print(f"{'fault':55} {'times':>5} {'median s':>9} {'most s':>7}")
    for name, recovery_s in sorted(outcome.recovery_s.items()):
        print(f"{name:55} {len(recovery_s):5d} {statistics.median(recovery_s):9.1f} {max(recovery_s):7.1f}")
    print(f"{outcome.struck()} faults; {outcome.rows:,} rows shown, {outcome.versions} versions")
    struck = outcome.struck("worker")
    print(f"{struck} faults struck workers, which were seen to have learned {outcome.slices:,} slices")
    print(f"{outcome.lost:,} rows or labels lost, {outcome.doubled:,} doubled")
    print(f"{outcome.requests:,} requests, {outcome.unanswered:,} of them without an answer")
    print(f"compared {sum(outcome.compared):,} replies of {len(outcome.compared)} versions with the store's")
    print(f"{outcome.found:,} lists of items compared with the files of their version")
    for violation in outcome.violations:
        print(f"VIOLATION: {violation}")
    print(f"{len(outcome.violations)} violations, seed {seed}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
