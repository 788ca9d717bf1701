"""The text of a compiled HLO module: how many kernels it launches."""

from __future__ import annotations

import re

__all__ = ["launches"]

# Instructions of a compiled module that run nothing on a device.
_FREE = frozenset((
    "after-all", "bitcast", "call", "conditional", "constant", "get-tuple-element", "opt-barrier", "parameter",
    "partition-id", "replica-id", "tuple", "while",
))  # fmt: skip
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([\w\-]+)\(")
_CALLED = re.compile(r"(?:to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_CALLERS = ("call", "while", "conditional")


def launches(module: str) -> int:
    r"""Return how many kernels and library calls a compiled module has: a fusion is one, a loop's body counts once.

    Examples:
        >>> launches(
        ...     "%fused (p: f32[2]) -> f32[2] {\n  %a = f32[2]{0} add(p, p)\n}\n\n"
        ...     "ENTRY %main (x: f32[2]) -> f32[2] {\n  %x = f32[2]{0} parameter(0)\n"
        ...     "  ROOT %f = f32[2]{0} fusion(x), kind=kLoop, calls=%fused\n}\n"
        ... )
        1
    """
    entry, name = "", ""
    bodies: dict[str, list[tuple[str, str]]] = {}
    for line in module.splitlines():
        if found := _COMPUTATION.match(line):
            name = found[2]
            entry = name if found[1] else entry
            bodies[name] = []
        elif name and (found := _INSTRUCTION.match(line)):
            bodies[name].append((found[1], line))
    return _launches(bodies, entry)


def _launches(bodies: dict[str, list[tuple[str, str]]], name: str) -> int:
    count = 0
    for operation, line in bodies.get(name, ()):
        if operation in _CALLERS:
            count += sum(_launches(bodies, called) for called in _CALLED.findall(line))
        count += operation not in _FREE and not operation.endswith("-done")
    return count
