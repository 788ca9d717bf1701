"""The compiler: whatever its process does, the thread goes on, and gives up within its bounds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamlearn.serving.graphs.compile_cache import CompileCache
from streamlearn.serving.graphs.compiler import Compiler
from streamlearn.serving.graphs.executables import CompileBudget
from streamlearn.serving.graphs.ladder import Bucket
from streamlearn.settings import ServingSettings
from streamlearn.testing import wait_until

# What a process in the place of ours does with a line.
DOES = {
    "answers": "say('{}')",
    "complains": """say('{"error": "XLA refuses"}')""",
    "dies": "sys.exit(7)",
    "babbles": "say('no answer')",
    "hangs": "time.sleep(1000)",
}
PROCESS = """
import sys, time
def say(line):
    sys.stdout.write(line + chr(10)); sys.stdout.flush()
say('{}')
for line in sys.stdin:
    %s
"""


class Asked:
    """Executables, as far as a compiler knows them."""

    def __init__(self) -> None:
        self.budget = CompileBudget(100)
        self.made: list[Bucket] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def has(self, bucket: Bucket) -> bool:
        return bucket in self.made

    def compile(self, bucket: Bucket) -> bool:
        assert self.may_go_on.wait(60)
        self.made.append(bucket)
        return True


@contextmanager
def compiler(folder: Path, does: str, **settings: Any) -> Iterator[Compiler]:
    command = [sys.executable, "-c", PROCESS % DOES[does]]
    found = Compiler(ServingSettings(**settings), CompileCache(folder, 1_000), command=command)
    try:
        yield found
    finally:
        found.close()


def is_running(one: Compiler) -> bool:
    return one._process is not None


def bucket(rows: int) -> Bucket:
    return Bucket("score", rows, 5)


def test_what_is_asked_for_is_made_in_turn_and_once(tmp_path: Path) -> None:
    asked: Any = Asked()
    with compiler(tmp_path, "answers") as found:
        assert not is_running(found)
        assert [found.ask(asked, tmp_path, bucket(rows)) for rows in (1, 2, 2)] == [True, True, False]
        wait_until(lambda: len(asked.made) == 2, "two shapes")
        assert asked.made == [bucket(1), bucket(2)]
        assert not found.ask(asked, tmp_path, bucket(2))
        assert is_running(found)
    assert not is_running(found)
    assert not found.ask(asked, tmp_path, bucket(3))


def test_only_so_many_shapes_wait(tmp_path: Path) -> None:
    asked: Any = Asked()
    asked.may_go_on.clear()
    with compiler(tmp_path, "answers", compile_queue_max=2) as found:
        taken = [found.ask(asked, tmp_path, bucket(rows)) for rows in range(1, 5)]
        assert taken == [True, True, False, False]
        asked.may_go_on.set()
        wait_until(lambda: len(asked.made) == 2, "two shapes")
        wait_until(lambda: found.ask(asked, tmp_path, bucket(3)), "room")
        wait_until(lambda: len(asked.made) == 3, "three shapes")


def test_who_wants_all_shapes_of_a_graph_waits_for_them_however_few_may_wait(tmp_path: Path) -> None:
    asked: Any = Asked()
    wanted = [bucket(rows) for rows in range(1, 6)]
    with compiler(tmp_path, "answers", compile_queue_max=2) as found:
        found.compile_all(asked, tmp_path, wanted)
        assert asked.made == wanted
    with compiler(tmp_path, "complains", compile_queue_max=2) as found:
        found.compile_all(asked, tmp_path, [bucket(9)])
        assert asked.made == wanted


@pytest.mark.parametrize("does", ["complains", "dies", "babbles", "hangs"])
def test_after_so_many_failures_in_a_row_nothing_more_is_tried(
    tmp_path: Path, does: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked: Any = Asked()
    bound = {"compile_failures_max": 2} | ({"compile_s_max": 0.5} if does == "hangs" else {})
    with compiler(tmp_path, does, **bound) as found:
        for rows in (1, 2):
            wait_until(partial(found.ask, asked, tmp_path, bucket(rows)), "room")
        wait_until(lambda: "failed 2 times in a row" in caplog.text, "giving up")
        assert not found.ask(asked, tmp_path, bucket(3))
    assert asked.made == []


def test_where_no_more_may_be_made_nothing_is_tried(tmp_path: Path) -> None:
    asked: Any = Asked()
    asked.budget = CompileBudget(1)
    assert asked.budget.take()
    assert not asked.budget.take()
    with compiler(tmp_path, "answers") as found:
        assert not found.ask(asked, tmp_path, bucket(1))
        assert not is_running(found)


def test_it_is_closed_in_the_midst_of_a_compilation(tmp_path: Path) -> None:
    asked: Any = Asked()
    with compiler(tmp_path, "hangs") as found:
        found.ask(asked, tmp_path, bucket(1))
        wait_until(lambda: is_running(found), "the process")
    assert not is_running(found)
    assert asked.made == []
