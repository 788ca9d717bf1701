"""Order and answer of a peer's process: one JSON argument, and one line of JSON as the last line of stdout.

It runs in the environments of peers, so it imports only numpy and the standard library.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TextIO, TypeAlias

__all__ = ["Answers", "Order", "Turn", "TurnAnswers", "Wrong", "answer", "answer_in_turns", "reserve_stdout"]


@dataclass(frozen=True)
class Order:
    """The measurement that a peer has to do.

    Attributes:
        peer: The name of the peer, for modules with several.
        keys_count: Number of keys.
        figures: The groups of figures, by the peer's names.
        seed: Seed of keys and requests.
        latency_s: Duration of reads, alone and during each kind of writes.
        window_steps: Number of steps in a window of a trainer.
        windows: Number of windows.
        in_turns: Whether the peer waits before each window for a line on stdin.
        wait_s_max: The peer ends itself after this time, so that it cannot outlive a killed caller.
    """

    peer: str
    keys_count: int
    figures: tuple[str, ...]
    seed: int = 1
    latency_s: float = 6.0
    window_steps: int = 30
    windows: int = 5
    in_turns: bool = False
    wait_s_max: float = 900.0

    def text(self) -> str:
        """Return the order as an argument."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Order:
        """Read the order from an argument."""
        fields = json.loads(text)
        return cls(**{**fields, "figures": tuple(fields["figures"])})


Answers: TypeAlias = Mapping[str, Callable[[Order], dict[str, float]]]
# Says the figures of the last window, and returns when the peer may go on.
Turn: TypeAlias = Callable[[Mapping[str, float]], None]
TurnAnswers: TypeAlias = Mapping[str, Callable[[Order, Turn], dict[str, float]]]


class Wrong(Exception):
    """A peer returned wrong results, so its figures are invalid."""


def answer(answers: Answers, prepare: Callable[[Order], None] = lambda order: None) -> None:
    """Measure the groups of the order on the command line, and print their figures.

    `answers` has the function that measures each group. `prepare` is called first, with the order.
    """

    def alone(measure: Callable[[Order], dict[str, float]]) -> Callable[[Order, Turn], dict[str, float]]:
        return lambda order, turn: measure(order)

    answer_in_turns({name: alone(measure) for name, measure in answers.items()}, prepare)


def answer_in_turns(answers: TurnAnswers, prepare: Callable[[Order], None] = lambda order: None) -> None:
    """Do as `answer` does, and give each function the turn that it takes before a window.

    If the order says so, each window's figures are a line of their own on stdout, and the next window begins with a
    line on stdin.
    """
    order = Order.parse(sys.argv[1])
    signal.alarm(max(1, round(order.wait_s_max)))
    stdout = reserve_stdout()

    def turn(done: Mapping[str, float]) -> None:
        if not order.in_turns:
            return
        stdout.write(json.dumps(dict(done)) + "\n")
        stdout.flush()
        if not sys.stdin.readline():
            sys.exit("the caller has ended")

    prepare(order)
    figures: dict[str, float] = {}
    for name in order.figures:
        print(f"{order.peer}: {name}", file=sys.stderr, flush=True)
        figures.update(answers[name](order, turn))
    stdout.write(json.dumps(figures) + "\n")
    stdout.close()


def reserve_stdout() -> TextIO:
    """Return stdout for the answer alone, and redirect all other output of libraries to stderr."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(stdout, "w")
