"""Test runner: four pytest processes in parallel, because most tests wait for a service.

All processes get the words of the command line. If the words name tests, one process runs only those. `--quick` leaves
out the tests that need a service and those in `tests/slow.txt`; `--write-slow` writes that file after a run of all.
`--beside COMMAND` runs a shell command at the same time, and fails if it does. Files of tests are in memory where there
is room, and go at the end: run a single test to look at them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
# Folders whose tests take about the same time in total. The last process runs the other folders and the files. Only
# two of them need a Kafka.
SHARES = (
    ("benchmarks", "ingest", "manifest", "native", "online", "ps", "replay", "settings", "topics"),
    ("serving", "trainer"),
    ("console", "examples", "gateway", "publisher", "supervision", "table", "versions"),
)
# They need a wheel: `make release-test`.
APART = {"release"}
_NO_TESTS = 5
_QUICK = "not (slow or kafka or redis or prism or flink or chromium or helm)"
_SLOW_S = 0.5
_NICE = 10
# Tests write thousands of small files, each with an fsync: in memory, where there is room for them.
_MEMORY, _MEMORY_BYTES_MIN = Path("/dev/shm"), 8 << 30


def shares(tests: Path) -> list[list[str]]:
    """Return the folders and files that each process runs: each exactly once, but for those of `APART`."""
    folders = sorted(path.name for path in tests.iterdir() if any(path.glob("test_*.py")) and path.name not in APART)
    files = sorted(path.name for path in tests.glob("test_*.py"))
    chosen = [[name for name in folders if name in share] for share in SHARES]
    others = [name for name in folders if not any(name in share for share in SHARES)]
    return [[f"{tests.name}/{name}" for name in names] for names in (*chosen, others + files)]


def slow_tests(report: Path) -> list[str]:
    """Return the tests of a JUnit report that took more than half a second, without their parameters."""
    slow = []
    for case in ElementTree.parse(report).iter("testcase"):
        if float(case.get("time", 0)) > _SLOW_S and case.get("classname"):
            *folders, module, name = f"{case.get('classname')}.{case.get('name')}".partition("[")[0].split(".")
            if module.startswith("Test"):  # a class in a module
                folders, module, name = folders[:-1], folders[-1], f"{module}::{name}"
            slow.append(f"{'/'.join([*folders, module])}.py::{name}")
    return slow


def run_tests(words: Sequence[str], *, write_slow: bool = False, beside: str = "") -> int:
    """Run the tests, print the output of one process after the other, and return the highest status."""
    if any(word.startswith("tests") for word in words):
        return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False).returncode
    # Some tests wait for processes of low priority, which get no time beside processes of a higher one.
    os.nice(max(0, _NICE - os.getpriority(os.PRIO_PROCESS, 0)))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_fast_folder())))
        environment = os.environ | {"TMPDIR": str(folder)}
        # pytest writes its report at the end. A test that ends the process leaves no report, and perhaps status 0.
        reports, running = [], []
        for number, share in enumerate(shares(ROOT / "tests")):
            reports.append(folder / f"{number}.xml")
            # Only one process may use pytest's cache.
            cache = () if number == 0 else ("-p", "no:cacheprovider")
            command = [sys.executable, "-m", "pytest", f"--junitxml={reports[-1]}", *words, *cache, *share]
            output = stack.enter_context((folder / f"{number}.txt").open("w+b")) if number else None
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
            )
            stack.callback(_end, process)
            running.append((process, output))
        if beside:
            output = stack.enter_context((folder / "beside.txt").open("w+b"))
            process = subprocess.Popen(
                ["sh", "-c", beside], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
            stack.callback(_end, process)
            running.append((process, output))
        statuses = []
        for process, output in running:
            status = process.wait()
            statuses.append(status if status >= 0 else 128 - status)
            if output is not None:
                output.seek(0)
                sys.stdout.flush()
                sys.stdout.buffer.write(output.read())
                sys.stdout.flush()
        if not all(report.exists() for report in reports):
            print("error: a pytest process ended before it had run all of its tests", file=sys.stderr)
            return 1
        if write_slow:
            slow = sorted({name for report in reports for name in slow_tests(report)})
            (ROOT / "tests" / "slow.txt").write_text("".join(f"{name}\n" for name in slow))
    if set(statuses) == {_NO_TESTS}:
        return _NO_TESTS
    return max(status if status != _NO_TESTS else 0 for status in statuses)


def _fast_folder() -> Path | None:
    """Return a folder in memory that has room for the files of all tests, if there is one."""
    is_fit = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN
    return _MEMORY if is_fit and _free_memory() >= _MEMORY_BYTES_MIN else None


def _free_memory() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    beside = ""
    if "--beside" in arguments:
        at = arguments.index("--beside")
        beside = arguments[at + 1]
        del arguments[at : at + 2]
    flags = {flag for flag in ("--quick", "--write-slow") if flag in arguments}
    words = [word for word in arguments if word not in flags] + (["-m", _QUICK] if "--quick" in flags else [])
    sys.exit(run_tests(words, write_slow="--write-slow" in flags, beside=beside))
