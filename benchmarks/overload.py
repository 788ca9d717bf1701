"""Overload: how much of the value of its answers a node keeps when more is asked of it than it can do."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.nodes.overload_world import SHOWN, Costs, Worth, logits_of, oracle, spread_scores
from benchmarks.nodes.serving_bare import export
from benchmarks.nodes.serving_life import halves, on_cores
from benchmarks.nodes.serving_load import Contender, overload, peaks
from benchmarks.nodes.serving_model import CANDIDATES_MEAN, REQUESTS, ServingModel
from benchmarks.nodes.serving_nodes import ServingNode
from benchmarks.nodes.serving_parts import Parts, Sizes
from benchmarks.result import Result
from streamlearn.errors import ServiceError
from streamlearn.load.load_run import Load, LoadPlan, LoadResult

__all__ = ["run"]

Note = Callable[[str], None]

_APP = "serving_din"
_FEW = ("serving.users_buckets=[1,16]", "serving.candidates_buckets=[16,64,256]")
_ALLOWANCE = ("allowance.candidates_min=4", f"allowance.shown={SHOWN}")
_LOADS, _CUTS = (2, 4), {2: (8, 12, 16, 20), 4: (4, 6, 8, 12)}
_DEADLINE_MS, _WARMUP_S = 50, 2.0
_FIXED_SIZES, _SATURATING = (8, 72), 64
_STEP_S, _SETTLED_S, _SPAN_S = 7, 3, 0.5
# Of figures with the nodes on half of the cores, and their callers on the others.
_APART = "apart."


def run(quick: bool, note: Note) -> Result:
    """Measure a node with an allowance beside one without, which sheds, and one whose callers cut to a fixed number."""
    result = Result("overload")
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder:
        place = Path(folder)
        sizes = Sizes(5_000, seconds=2, rounds=1, settings=_FEW) if quick else Sizes(seconds=6, rounds=3)
        parts = Parts(sizes, note, result, place)
        note("export graphs")
        export(place / "graphs", _APP)
        model = parts.model(_APP)
        asked = model.requests(REQUESTS)
        with parts.node(model, "first") as first:
            spread_scores(model, first, asked)
            version = model.write(1)
            with model.pointing() as pointing:
                pointing.publish(version)
            worth = Worth.of(asked, logits_of(model, first, asked))
        every = sorted(os.sched_getaffinity(0))
        places = {"": (every, every)}
        with parts.part("cores for the callers alone"):
            places[_APART] = halves()
        for prefix, (own, others) in places.items():
            with ExitStack() as stack:
                with on_cores(own):
                    off = stack.enter_context(parts.node(model, f"{prefix}off"))
                    on = stack.enter_context(parts.node(model, f"{prefix}on", _ALLOWANCE))
                    note(f"nodes on cores {own} are at {off.grpc} and {on.grpc}, their callers on cores {others}")
                stack.enter_context(on_cores(others))
                of_run = Parts(sizes, note, Result("overload"), place)
                _Overload(of_run, model, worth, off, on).measure(quick=quick)
                result.take(of_run.result, prefix)
    return result


@dataclass
class _Overload:
    """A run: two nodes of one model. All but the measured one are paused."""

    parts: Parts
    model: ServingModel
    worth: Worth
    off: ServingNode
    on: ServingNode
    _peak: float = 0.0

    def measure(self, *, quick: bool) -> None:
        parts, result = self.parts, self.parts.result
        (self._label,) = (label.name for label in self.model.folder.app.labels)
        messages = self.worth.messages(self.model)
        # A node without an allowance reads what a request is worth too, and does nothing with it.
        self._loads = {name: node.load(messages) for name, node in (("off", self.off), ("on", self.on))}
        both = [
            Contender(name, self._loads[name], node.process.pause, node.process.resume)
            for name, node in (("off", self.off), ("on", self.on))
        ]
        with parts.part("goodput"):
            found = peaks(both, parts.sizes.rounds, parts.note, quick=quick)
            both_found = [pair for pair in zip(found["off"], found["on"], strict=True) if not math.isnan(sum(pair))]
            if not both_found:
                message = "found no rate that both nodes sustain"
                raise ServiceError(message, help="see the messages above, and check what else runs on the machine")
            self._peak = statistics.median(off for off, _ in both_found)
            result.figures["goodput"] = self._peak
            result.ratios["goodput_to_off"] = statistics.median(on / off for off, on in both_found)
        if not self._peak:
            return
        with parts.part("costs"):
            self._costs = self._measured_costs()
            mean = float(self._costs.of(np.array([round(CANDIDATES_MEAN)]))[0])
            result.figures["request_cost_share"] = self._costs.request / mean
        for contender, name in zip(both, ("overload_goodput", "overload_goodput_allowance"), strict=True):
            with parts.part(name):
                self._only(contender.name)
                result.ratios[name] = overload(contender.load, self._peak, parts.sizes.rounds, parts.sizes.seconds)
        for times in _LOADS:
            with parts.part(f"value at {times} times the goodput"):
                self._value(times)
        with parts.part("a step of load"):
            self._step()

    def _only(self, name: str) -> None:
        for other, node in (("off", self.off), ("on", self.on)):
            (node.process.resume if other == name else node.process.pause)()

    def _measured_costs(self) -> Costs:
        """Return the costs by the rates at which a saturated node answers requests of two sizes."""
        self._only("off")
        seconds = []
        for candidates in _FIXED_SIZES:
            messages = self.model.messages(self.model.requests_of_size(candidates, 500))
            plan = LoadPlan("closed", _SATURATING, self.parts.sizes.seconds, 1.0)
            done = self.off.load(messages).run(plan)
            seconds.append(done.seconds / done.ok)
        (few, many), (low, high) = seconds, _FIXED_SIZES
        candidate = (many - few) / (high - low)
        return Costs(max(few - low * candidate, 0.0), candidate)

    def _value(self, times: int) -> None:
        """Measure the share of the value of whole answers that is kept: by turns, medians of rounds."""
        shares: dict[str, list[float]] = {name: [] for name in ("oracle", "off", "on")}
        cuts = {cut: self.off.load(self.worth.messages(self.model, cut, says_worth=False)) for cut in _CUTS[times]}
        uniform: dict[int, list[float]] = {cut: [] for cut in cuts}
        for at in range(self.parts.sizes.rounds):
            self._only("off")
            once = self._offered(self._loads["off"], self._peak, at)
            off = self._offered(self._loads["off"], times * self._peak, at)
            for cut, load in cuts.items():
                uniform[cut].append(self._share(self._offered(load, times * self._peak, at)))
            self._only("on")
            on = self._offered(self._loads["on"], times * self._peak, at)
            shares["off"].append(self._share(off))
            shares["on"].append(self._share(on))
            # The oracle has the time in which a node does most: at its goodput, or while it sheds.
            budget_per_s = max(self._work(one) / one.seconds for one in (once, off))
            numbers = np.array([message for message, _, _ in on.answers])
            _, whole = self.worth.kept_by(on.answers, self._label)
            shares["oracle"].append(oracle(self.worth, numbers, self._costs, budget_per_s * on.seconds) / whole)
        figures, ratios = self.parts.result.figures, self.parts.result.ratios
        best = max(uniform, key=lambda cut: statistics.median(uniform[cut]))
        kept = {name: statistics.median(values) for name, values in shares.items()}
        kept["uniform"] = statistics.median(uniform[best])
        figures |= {f"value_{times}x_{name}": value for name, value in kept.items()}
        figures[f"value_{times}x_uniform_cut"] = best
        ratios[f"value_{times}x_to_oracle"] = kept["on"] / kept["oracle"]
        ratios[f"value_{times}x_to_shedding"] = kept["on"] / kept["off"]
        ratios[f"value_{times}x_to_uniform"] = kept["on"] / kept["uniform"]
        figures[f"value_{times}x_over_uniform"] = kept["on"] - kept["uniform"]

    def _step(self) -> None:
        """Measure a step from the goodput to four times of it: answers that are late, and how much work swings."""
        late, swings = [], []
        self._only("on")
        for at in range(self.parts.sizes.rounds):
            self._offered(self._loads["on"], self._peak, at, seconds=3, warmup_s=0.0)
            done = self._offered(self._loads["on"], 4 * self._peak, at, seconds=_STEP_S, warmup_s=1.0)
            late.append(done.late / max(done.in_time + done.late, 1))
            swings.append(self._swing(done))
        self.parts.figures({"step_late": statistics.median(late), "step_swing": statistics.median(swings)})

    def _swing(self, done: LoadResult) -> float:
        """Return by how much the work of half a second differs from the mean at most, after the first seconds."""
        spans: dict[int, float] = {}
        scored = self.worth.scored(done.answers, self._label)
        for (_, due_ns, _), (_, count) in zip(done.answers, scored, strict=True):
            span = int((due_ns / 1e9 - _SETTLED_S) / _SPAN_S)
            if due_ns >= _SETTLED_S * 1e9:
                spans[span] = spans.get(span, 0.0) + float(self._costs.of(np.array([count]))[0])
        work = [spans[span] for span in sorted(spans)][: int((_STEP_S + 1 - _SETTLED_S) / _SPAN_S)]
        mean = statistics.fmean(work)
        return max(abs(one / mean - 1) for one in work)

    def _offered(
        self, load: Load, rate: float, seed: int, seconds: int | None = None, warmup_s: float = _WARMUP_S
    ) -> LoadResult:
        seconds = seconds or self.parts.sizes.seconds
        plan = LoadPlan("poisson", rate, seconds, warmup_s, _DEADLINE_MS, seed, keeps_answers=True)
        return load.run(plan)

    def _share(self, done: LoadResult) -> float:
        kept, whole = self.worth.kept_by(done.answers, self._label)
        missed = done.overrun / max(done.due, 1)
        return kept / whole * (1 - missed)

    def _work(self, done: LoadResult) -> float:
        scored: Sequence[int] = [count for _, count in self.worth.scored(done.answers, self._label)]
        return float(self._costs.of(np.array(scored)).sum())
