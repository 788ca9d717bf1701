"""Run the tests in three processes side by side: most of them wait for a service, and a machine has two cores.

Words on the command line go to all. With words that name tests, one process runs just those.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Folders of tests that take about as long together as those of the other; a last process has the others, and files.
SHARES = (
    ("examples", "ingest", "publisher"),
    ("cli", "models", "native", "serving", "versions"),
)
_NO_TESTS = 5


def shares(tests: Path) -> list[list[str]]:
    """What each process runs, folders and files: nothing twice, and nothing left out."""
    folders = sorted(one.name for one in tests.iterdir() if one.is_dir() and any(one.glob("test_*.py")))
    files = sorted(one.name for one in tests.glob("test_*.py"))
    named = [[name for name in folders if name in share] for share in SHARES]
    rest = [name for name in folders if not any(name in share for share in SHARES)]
    return [[f"{tests.name}/{name}" for name in one] for one in (*named, rest + files)]


def run_tests(words: Sequence[str]) -> int:
    """Run all; what each process says comes when it and those before it have ended. Gives the worst status."""
    if any(word.startswith("tests") for word in words):
        return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False).returncode
    with ExitStack() as left:
        folder = Path(left.enter_context(tempfile.TemporaryDirectory()))
        # A report is written at the end of all: a test that ends its process leaves none, and perhaps a status of 0.
        reports, running = [], []
        for number, share in enumerate(shares(ROOT / "tests")):
            reports.append(folder / f"{number}.xml")
            # A cache of pytest's own is for one process.
            cache = () if number == 0 else ("-p", "no:cacheprovider")
            command = [sys.executable, "-m", "pytest", f"--junitxml={reports[-1]}", *words, *cache, *share]
            said = None if number == 0 else left.enter_context((folder / f"{number}.txt").open("w+b"))
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=said, stderr=None if said is None else subprocess.STDOUT
            )
            left.callback(_end, process)
            running.append((process, said))
        statuses = []
        for process, said in running:
            statuses.append(process.wait())
            if said is not None:
                said.seek(0)
                sys.stdout.flush()
                sys.stdout.buffer.write(said.read())
                sys.stdout.flush()
        if not all(report.exists() for report in reports):
            print("error: a process of the tests ended before their end", file=sys.stderr)
            return 1
    if set(statuses) == {_NO_TESTS}:
        return _NO_TESTS
    return max(status if status != _NO_TESTS else 0 for status in statuses)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    sys.exit(run_tests(sys.argv[1:]))
