"""Scoring: a node's graphs on a device, merged and alone, and lanes as processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tools.gpu.children import children
from tools.gpu.kit import Kit
from tools.gpu.pjrt import Executable, Pjrt
from tools.gpu.report import Report, taken_s

__all__ = ["Request", "compile_all", "run_lanes", "score"]

_CANDIDATES, _MERGED = 32, (1, 2, 4, 8, 16)
_LANES_S_MAX = 300.0


class Request:
    """Some requests of 32 candidates, merged into one execution of the smallest graphs that take them."""

    def __init__(self, kit: Kit, pjrt: Pjrt, requests: int) -> None:
        self.user = next(graph for graph in kit.of("user") if graph.rows >= requests)
        self.score = next(graph for graph in kit.of("score") if graph.rows >= requests * _CANDIDATES)
        self._pjrt, self._weights = pjrt, pjrt.put(kit.weights(self.user))
        self._users = kit.inputs(self.user)
        # The outputs of the user graph come first among the inputs of the score graph.
        self._candidates = kit.inputs(self.score)[2:]

    def run(self, user: Executable, score: Executable) -> Any:
        """Copy the inputs, run both graphs, and return the scores."""
        users = user([*self._weights, *self._pjrt.put(self._users)])
        return self._pjrt.get(score([*self._weights, *users, *self._pjrt.put(self._candidates)]))[0]


def compile_all(kit: Kit, pjrt: Pjrt, report: Report) -> dict[str, Executable]:
    """Compile each graph, serialize it and load it again; the serialized ones are kept in the report's folder."""
    executables, loads_s = {}, []
    for graph in kit.graphs:
        executable = executables[graph.name] = pjrt.compile(kit, graph)
        text = f"{executable.compile_s:.2f} s, {graph.operations} operations, {graph.launches} launches"
        report.note(f"  {graph.name}: {executable.format}, {text}, then {executable.launches}")
        try:
            data = pjrt.serialized(executable)
            loads_s.append(pjrt.deserialized(data).compile_s)
            (report.folder / f"{graph.name}.executable").write_bytes(data)
        except Exception as error:
            report.unmeasured["compile_warm_s"] = f"{graph.name} cannot be serialized: {error}"
    report.figures["compile_cold_s"] = sum(executable.compile_s for executable in executables.values())
    if "compile_warm_s" not in report.unmeasured:
        report.figures["compile_warm_s"] = sum(loads_s)
    return executables


def score(kit: Kit, pjrt: Pjrt, executables: dict[str, Executable], report: Report, seconds: float) -> None:
    """Check the goldens of each shape, and measure shapes and merged requests."""
    for graph in (*kit.of("user"), *kit.of("score"), *kit.of("score_int32")):
        executable, weights, inputs = executables[graph.name], pjrt.put(kit.weights(graph)), kit.inputs(graph)

        def run(executable: Executable = executable, weights: list[Any] = weights, inputs: Any = inputs) -> Any:
            return pjrt.get(executable([*weights, *pjrt.put(inputs)]))

        report.golden(graph.name, kit.difference(graph, run()))
        report.figures[f"{graph.name}_us"] = taken_s(run, seconds) * 1e6
    launches = {}
    for requests in _MERGED:
        merged = Request(kit, pjrt, requests)
        pair = executables[merged.user.name], executables[merged.score.name]
        took_s = taken_s(lambda: merged.run(*pair), seconds)  # noqa: B023
        launches[requests] = sum(executable.launches for executable in pair) / requests
        report.figures[f"merged_{requests}_us_per_request"] = took_s * 1e6 / requests
        report.figures[f"merged_{requests}_launches_per_request"] = launches[requests]
    alone = Request(kit, pjrt, 1)
    plain = alone.user.launches + alone.score.launches
    report.figures["uncompiled_launches_per_request"] = plain
    report.figures["launches_by_fusion"] = plain / launches[1]
    report.figures["launches_by_merging"] = launches[1] / launches[_MERGED[-1]]


def run_lanes(kit: Kit, platform: str, report: Report, counts: Sequence[int], seconds: float) -> None:
    """Score single requests in so many processes at once, and in one process with two threads."""
    command = ["tools.gpu.lane", str(kit.folder), platform, str(report.folder), str(max(counts))]
    rates: dict[str, float] = {}
    with children([command] * max(counts), _LANES_S_MAX + 10 * seconds) as lanes:
        for processes, threads in [(count, 1) for count in counts] + [(1, 2)]:
            name = f"lanes_{processes}" if threads == 1 else f"lane_threads_{threads}"
            for process in lanes[:processes]:
                assert process.stdin is not None
                print(threads, seconds, file=process.stdin, flush=True)
            answers = [json.loads(process.stdout.readline()) for process in lanes[:processes] if process.stdout]
            rates[name] = sum(answer["per_s"] for answer in answers)
            report.figures[f"{name}_per_s"] = rates[name]
            report.figures[f"{name}_p99_ms"] = max(answer["p99_ms"] for answer in answers)
            for answer in answers:
                report.golden(f"{name}: {answer['graph']}", answer["difference"])
    for name in [name for name in rates if name != "lanes_1"]:
        report.figures[f"{name}_to_1"] = rates[name] / rates["lanes_1"]
