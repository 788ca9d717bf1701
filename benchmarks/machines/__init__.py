"""`python -m benchmarks machines`: what streamlearn needs and does on many machines."""

from benchmarks.machines.parts import TARGETS, run

__all__ = ["TARGETS", "run"]
