"""Test runner: eight pytest processes in parallel, because most tests wait for a service.

All processes get the words of the command line. If the words name tests, one process runs only those. `--quick` leaves
out the tests that need a service and those in `tests/slow.txt`; `--write-slow` writes that file after a run of all.
`--beside COMMAND` runs a shell command at the same time, and fails if it does. Files of tests are in memory where there
is room, and go at the end: run a single test to look at them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
# Folders whose tests take about the same time in total; a folder in another one is not run with that one. A process
# before these runs the other folders and the files. Each that needs a Kafka starts one.
SHARES = (
    ("events", "ingest", "native", "online", "replay", "settings"),
    ("trainer",),
    ("serving", "supervision", "versions"),
    ("examples", "publisher", "table"),
    ("benchmarks", "cli", "ps"),
    ("models", "trainer/towers", "trainer/workers"),
    ("console", "gateway", "tools"),
)
# They need a wheel: `make release-test`.
APART = {"release"}
_NO_TESTS = 5
_QUICK = "not (slow or kafka or redis or prism or flink or chromium or helm)"
_SLOW_S = 0.5
_NICE = 10
_WHY_MAX = 200
# Tests write thousands of small files, each with an fsync: in memory, where there is room for them.
_MEMORY, _MEMORY_BYTES_MIN = Path("/dev/shm"), 8 << 30


def shares(tests: Path) -> list[list[str]]:
    """Return the words for pytest of each process: every test is in exactly one, but for those of `APART`."""
    folders = sorted(path.name for path in tests.iterdir() if any(path.glob("test_*.py")) and path.name not in APART)
    files = sorted(path.name for path in tests.glob("test_*.py"))
    chosen = [name for share in SHARES for name in share]
    others = [name for name in folders if name not in chosen] + files
    words = []
    for names in (others, *SHARES):
        found = [name for name in names if (tests / name).exists()]
        inner = [name for name in chosen if name.rpartition("/")[0] in found]
        words.append([f"{tests.name}/{name}" for name in found] + [f"--ignore={tests.name}/{name}" for name in inner])
    return words


def slow_tests(report: Path) -> list[str]:
    """Return the tests of a JUnit report that took more than half a second, without their parameters."""
    return [_name(case) for case in ElementTree.parse(report).iter("testcase") if float(case.get("time", 0)) > _SLOW_S]


def failed_tests(report: Path) -> dict[str, str]:
    """Return the tests of a JUnit report that failed, without their parameters, with the first line of why."""
    failed = {}
    for case in ElementTree.parse(report).iter("testcase"):
        for why in (*case.iter("failure"), *case.iter("error")):
            failed[_name(case)] = next(iter(why.get("message", "").splitlines()), "")[:_WHY_MAX]
    return failed


def _name(case: ElementTree.Element) -> str:
    if not case.get("classname"):  # a module that could not be imported
        return case.get("name", "").replace(".", "/") + ".py"
    *folders, module, name = f"{case.get('classname')}.{case.get('name')}".partition("[")[0].split(".")
    if module.startswith("Test"):  # a class in a module
        folders, module, name = folders[:-1], folders[-1], f"{module}::{name}"
    return f"{'/'.join([*folders, module])}.py::{name}"


def run_tests(words: Sequence[str], *, write_slow: bool = False, beside: str = "") -> int:
    """Run the tests, print the output of one process after the other, and return the highest status."""
    if any(word.startswith("tests") for word in words):
        return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False).returncode
    # Some tests wait for processes of low priority, which get no time beside processes of a higher one.
    os.nice(max(0, _NICE - os.getpriority(os.PRIO_PROCESS, 0)))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_fast_folder())))
        # As `streamlearn` sets it.
        environment = os.environ | {"TMPDIR": str(folder), "OPENBLAS_THREAD_TIMEOUT": "4"}
        commands = []
        # pytest writes its report at the end. A test that ends the process leaves no report, and perhaps status 0.
        reports = []
        for number, share in enumerate(shares(ROOT / "tests")):
            reports.append(folder / f"{number}.xml")
            # Only one process may use pytest's cache.
            cache = () if number == 0 else ("-p", "no:cacheprovider")
            commands.append([sys.executable, "-m", "pytest", f"--junitxml={reports[-1]}", *words, *cache, *share])
        statuses = _run_all([*commands, *([["sh", "-c", beside]] if beside else [])], folder, environment)
        whole = [report for report in reports if report.exists()]
        # The last lines of a long output are read first.
        for name, why in {name: why for report in whole for name, why in failed_tests(report).items()}.items():
            print(f"failed: {name}: {why}", file=sys.stderr)
        if len(whole) < len(reports):
            print("error: a pytest process ended before it had run all of its tests", file=sys.stderr)
            return 1
        if write_slow:
            slow = sorted({name for report in reports for name in slow_tests(report)})
            (ROOT / "tests" / "slow.txt").write_text("".join(f"{name}\n" for name in slow))
    if set(statuses) == {_NO_TESTS}:
        return _NO_TESTS
    return max(status if status != _NO_TESTS else 0 for status in statuses)


def _run_all(commands: Sequence[Sequence[str]], folder: Path, environment: Mapping[str, str]) -> list[int]:
    """Run commands at the same time, and print the output of one after the other; returns their statuses.

    The first one prints as it runs.
    """
    running: list[subprocess.Popen[bytes]] = []

    def run(number: int) -> int:
        begin_s = time.monotonic()
        with (folder / f"{number}.txt").open("wb") as file:
            output = file if number else None
            errors = subprocess.STDOUT if number else None
            process = subprocess.Popen(commands[number], cwd=ROOT, env=environment, stdout=output, stderr=errors)
            running.append(process)
            status = process.wait()
        named = " ".join(word for word in commands[number] if word.startswith("tests/")) or commands[number][-1]
        print(f"{time.monotonic() - begin_s:4.0f} s, status {status}: {named:.80}", file=sys.stderr, flush=True)
        return status if status >= 0 else 128 - status

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(len(commands)))
        stack.callback(_end_all, running)
        statuses = []
        for number, future in enumerate([pool.submit(run, number) for number in range(len(commands))]):
            statuses.append(future.result())
            sys.stdout.flush()
            sys.stdout.buffer.write((folder / f"{number}.txt").read_bytes())
            sys.stdout.flush()
        return statuses


def _fast_folder() -> Path | None:
    """Return a folder in memory that has room for the files of all tests, if there is one."""
    is_fit = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN
    return _MEMORY if is_fit and _free_memory() >= _MEMORY_BYTES_MIN else None


def _free_memory() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _end_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    # SIGTERM ends the tests and removes their files, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    arguments = sys.argv[1:]
    beside = ""
    if "--beside" in arguments:
        at = arguments.index("--beside")
        beside = arguments[at + 1]
        del arguments[at : at + 2]
    flags = {flag for flag in ("--quick", "--write-slow") if flag in arguments}
    words = [word for word in arguments if word not in flags] + (["-m", _QUICK] if "--quick" in flags else [])
    sys.exit(run_tests(words, write_slow="--write-slow" in flags, beside=beside))
