"""What a peer is asked and how it answers: one JSON argument in, ONE line of JSON last on stdout.

It runs in a peer's environment, where there is numpy and nothing of this project. It does not know what is measured.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TextIO, TypeAlias

__all__ = ["Answers", "Order", "Wrong", "answer"]


@dataclass(frozen=True)
class Order:
    """What a peer is asked to measure.

    Attributes:
        peer: Its name, for a file that holds several.
        keys_count: How many keys the table is filled with.
        figures: Which groups, by the names a peer has them under.
        seed: Of the keys and of what is asked for.
        latency_s: How long a reader is timed, without a writer and beside each kind of writer.
        window_steps: How many steps of a trainer are timed together.
        wait_s_max: After this the peer ends itself, so that it cannot outlive a caller that was killed.
    """

    peer: str
    keys_count: int
    figures: tuple[str, ...]
    seed: int = 1
    latency_s: float = 6.0
    window_steps: int = 30
    wait_s_max: float = 900.0

    def text(self) -> str:
        """The argument that says this."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Order:
        """The order of an argument."""
        fields = json.loads(text)
        return cls(**{**fields, "figures": tuple(fields["figures"])})


Answers: TypeAlias = Mapping[str, Callable[[Order], dict[str, float]]]


class Wrong(Exception):
    """A table gave back something else than what was put into it: its figures are worth nothing."""


def answer(answers: Answers, prepare: Callable[[Order], None] = lambda order: None) -> None:
    """Measure what the command line orders, and print it.

    Args:
        answers: How each group of figures is measured.
        prepare: Called first, with the order.
    """
    order = Order.parse(sys.argv[1])
    signal.alarm(max(1, round(order.wait_s_max)))
    stdout = _stdout_alone()
    prepare(order)
    found: dict[str, float] = {}
    for name in order.figures:
        print(f"{order.peer}: {name}", file=sys.stderr, flush=True)
        found.update(answers[name](order))
    stdout.write(json.dumps(found) + "\n")
    stdout.close()


def _stdout_alone() -> TextIO:
    """This process's stdout, for the answer alone: what libraries print from here on, until exit, goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(kept, "w")
