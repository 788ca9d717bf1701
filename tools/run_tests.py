"""Run the tests in two processes side by side: most of them wait for a service, and a machine has two cores.

Words on the command line go to both. With words that name tests, one process runs just those.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
# About as long as all the others together.
FIRST = ("ingest", "examples", "ps", "publisher", "replay", "table", "tools", "topics")
_NO_TESTS = 5


def shares(tests: Path) -> tuple[list[str], list[str]]:
    """What each process runs, folders and files: nothing twice, and nothing left out."""
    folders = sorted(one.name for one in tests.iterdir() if one.is_dir() and any(one.glob("test_*.py")))
    files = sorted(one.name for one in tests.glob("test_*.py"))
    first = [name for name in folders if name in FIRST] + files
    second = [name for name in folders if name not in FIRST]
    return [f"{tests.name}/{name}" for name in first], [f"{tests.name}/{name}" for name in second]


def run_tests(words: Sequence[str]) -> int:
    """Run all; what the second process says comes after what the first says. Gives the worse status."""
    if any(word.startswith("tests") for word in words):
        return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False).returncode
    first, second = shares(ROOT / "tests")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as said:
        # A report is written at the end of all: a test that ends its process leaves none, and perhaps a status of 0.
        reports = [Path(folder, name) for name in ("first.xml", "second.xml")]
        commands = [[sys.executable, "-m", "pytest", f"--junitxml={report}", *words] for report in reports]
        # A cache of pytest's own is for one process.
        second = ["-p", "no:cacheprovider", *second]
        aside = subprocess.Popen([*commands[1], *second], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
        try:
            statuses = [subprocess.run([*commands[0], *first], cwd=ROOT, check=False).returncode, aside.wait()]
        except BaseException:
            aside.terminate()
            aside.wait()
            raise
        finally:
            said.seek(0)
            sys.stdout.flush()
            sys.stdout.buffer.write(said.read())
            sys.stdout.flush()
        if not all(report.exists() for report in reports):
            print("error: a process of the tests ended before their end", file=sys.stderr)
            return 1
    if statuses == [_NO_TESTS, _NO_TESTS]:
        return _NO_TESTS
    return max(status if status != _NO_TESTS else 0 for status in statuses)


if __name__ == "__main__":
    sys.exit(run_tests(sys.argv[1:]))
