"""Step: a training step on a device, which hands its weights and slots from step to step."""

from __future__ import annotations

from typing import Any

from tools.gpu.kit import Arrays, Graph, Kit
from tools.gpu.pjrt import Executable, Pjrt
from tools.gpu.report import Report, taken_s

__all__ = ["Step", "learn"]


class Step:
    """A step with its weights and slots on the device.

    Attributes:
        graph: Its graph.
        given: The golden inputs without weights and slots.
    """

    def __init__(self, kit: Kit, pjrt: Pjrt, graph: Graph, executable: Executable) -> None:
        self.graph, self._pjrt, self._executable = graph, pjrt, executable
        inputs, first = kit.inputs(graph), graph.donated[0][0]
        self.given, self._state = inputs[:first], pjrt.put(inputs[first:])

    def run(self, arrays: list[Any]) -> list[Any]:
        """Learn from arrays on the device; return all outputs.

        Raises:
            RuntimeError: The memory of weights and slots was not taken over.
        """
        before = self._state
        outputs = self._executable([*arrays, *before])
        self._state = [outputs[output] for _, output in self.graph.donated]
        if not all(array.is_deleted() for array in before):
            message = f"{self.graph.name} copies its weights and slots, which it should update in place"
            raise RuntimeError(message)
        return outputs

    def whole(self, arrays: Arrays) -> list[Any]:
        """Copy arrays to the device, learn, and return the outputs besides weights and slots in this memory."""
        return self._pjrt.get(self.run(self._pjrt.put(arrays))[: -len(self.graph.donated)])


def learn(kit: Kit, pjrt: Pjrt, executables: dict[str, Executable], report: Report, seconds: float) -> None:
    """Check the goldens of each step, and measure it with and without its copies."""
    for graph in kit.of("step"):
        step = Step(kit, pjrt, graph, executables[graph.name])
        there = pjrt.put(step.given)
        report.golden(graph.name, kit.difference(graph, pjrt.get(step.run(there))))
        alone_s = taken_s(lambda: pjrt.wait(step.run(there)), seconds)  # noqa: B023
        whole_s = taken_s(lambda: step.whole(step.given), seconds)  # noqa: B023
        report.figures[f"{graph.name}_us_per_sample"] = alone_s * 1e6 / graph.rows
        report.figures[f"{graph.name}_with_copies_us_per_sample"] = whole_s * 1e6 / graph.rows
        report.figures[f"{graph.name}_launches"] = executables[graph.name].launches
        report.figures[f"{graph.name}_uncompiled_launches"] = graph.launches
