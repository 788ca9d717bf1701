"""Crew: processes that wait for orders, and answer by lines of JSON.

A process that waits costs nothing, so that several crews can take turns on the same cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeAlias

from streamlearn.errors import ServiceError
from tools.services.process import log_tail

__all__ = ["Answer", "Crew"]

Answer: TypeAlias = dict[str, Any]

_ROOT = Path(__file__).parent.parent.parent
_END_S_MAX = 30.0


class Crew:
    """Processes of modules of ours.

    Attributes:
        processes: They, in the order of their words.
    """

    def __init__(
        self, words: Sequence[Sequence[str]], logs: Path, variables: Sequence[Mapping[str, str]] | None = None
    ) -> None:
        """Start them.

        Args:
            words: The module and the arguments of each.
            logs: The folder for what each says on stderr.
            variables: The environment variables of each, beside those of this process.
        """
        logs.mkdir(parents=True, exist_ok=True)
        self.processes: list[subprocess.Popen[str]] = []
        self._logs: list[Path] = []
        with ExitStack() as stack:
            stack.callback(self.close)
            for number, of_one in enumerate(words):
                log = logs / f"{of_one[0].rpartition('.')[2]}-{number}.log"
                own = {} if variables is None else dict(variables[number])
                with log.open("a") as stderr:
                    process = subprocess.Popen(
                        [sys.executable, "-m", *of_one],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=stderr,
                        text=True,
                        cwd=_ROOT,
                        env=os.environ | own,
                        start_new_session=True,
                    )
                self.processes.append(process)
                self._logs.append(log)
            stack.pop_all()

    def tell(self, order: str) -> None:
        """Give all an order."""
        for process in self.processes:
            assert process.stdin is not None
            with suppress(OSError):  # it has ended, as its output will say
                process.stdin.write(f"{order}\n")
                process.stdin.flush()

    def heard(self, number: int) -> Answer:
        """Wait for the next answer of one.

        Raises:
            ServiceError: It has ended.
        """
        process = self.processes[number]
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.endswith("\n"):
            message = f"a process ended; its stderr ends with\n{log_tail(self._logs[number])}"
            raise ServiceError(message, help="look at what it said")
        answer: Answer = json.loads(line)
        return answer

    def all_heard(self) -> list[Answer]:
        """Wait for the next answer of each."""
        return [self.heard(number) for number in range(len(self.processes))]

    def asked(self, order: str) -> list[Answer]:
        """Give all an order, and wait for the answer of each."""
        self.tell(order)
        return self.all_heard()

    def ended(self) -> bool:
        """Wait for some seconds, and return whether all have ended by themselves."""
        for process in self.processes:
            try:
                process.wait(_END_S_MAX)
            except subprocess.TimeoutExpired:
                return False
        return True

    def close(self) -> None:
        """Kill those that still run."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait(_END_S_MAX)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # what was told to one that has ended
                        pipe.close()
