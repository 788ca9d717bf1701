"""Failing: what a run calls after each step, to fail at some of them."""

from __future__ import annotations

from streamlearn.errors import ShardUnreachable
from streamlearn.trainer.learning_loop import LearnedStep

__all__ = ["Failing"]


class Failing:
    """Fails once at each of some steps, counted from the beginning of the run, whatever was learned again."""

    def __init__(self, *steps: int) -> None:
        self.steps, self.learned = set(steps), 0

    def __call__(self, done: LearnedStep) -> None:
        self.learned += 1
        if self.learned in self.steps:
            message = f"no shard answers at step {self.learned}"
            raise ShardUnreachable(message, help="a test")
