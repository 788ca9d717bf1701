"""Parts of the benchmark of serving: each measures something of nodes and puts it down; one may fail alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.nodes.serving_bare import BareExecutables
from benchmarks.nodes.serving_load import Contender, answers_per_s_of, cpu_us, one_caller, peaks
from benchmarks.nodes.serving_model import ServingModel
from benchmarks.nodes.serving_nodes import ServingNode
from benchmarks.nodes.serving_peers import PeerServer, ready_servers
from benchmarks.result import Result
from streamlearn.errors import ServiceError, StreamlearnError
from streamlearn.serving.infer import InferAnswer
from streamlearn.serving.load.load_run import Load

__all__ = ["Parts", "Sizes"]

Note = Callable[[str], None]

_REQUESTS, _COMPARED = 2_000, 4
_COMPILE_S = "streamlearn_serving_compile_seconds_total"
# Each TensorBatch holds one request.
_ALONE = ("serving.users_buckets=[1]",)


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        values: Of each slot; twenty of them have rows.
        delta_rows: How many rows a delta has.
        seconds: How long a run takes.
        rounds: How often there is one of each.
        starts: Of nodes that find compiled code.
        rollbacks: How many.
        switches: Rounds, and how many in each.
        deltas: How many.
        settings: Of nodes, as `--set` takes them.
    """

    values: int = 50_000
    delta_rows: int = 1_000_000
    seconds: int = 4
    rounds: int = 3
    starts: int = 3
    rollbacks: int = 21
    switches: tuple[int, int] = (10, 100)
    deltas: int = 6
    settings: tuple[str, ...] = ()


class Parts:
    """What is measured, and what came of it.

    Args:
        sizes: How much.
        note: Told what goes on.
        result: Where it is put down.
        place: A folder.
    """

    def __init__(self, sizes: Sizes, note: Note, result: Result, place: Path) -> None:
        self.sizes, self.note, self.result, self.place = sizes, note, result, place

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part; what it raises is said, and the command fails in the end."""
        self.note(name)
        try:
            yield
        except StreamlearnError as error:
            self.result.failures.append(name)
            self.result.unmeasured[name] = str(error).splitlines()[0]
            self.note(f"{name}: {error}")

    def figures(self, found: Mapping[str, float]) -> None:
        """Put figures down."""
        self.result.figures |= {name: one for name, one in found.items() if "_to_" not in name or name.endswith("_ms")}
        self.result.ratios |= {name: one for name, one in found.items() if "_to_" in name and not name.endswith("_ms")}

    def model(self, name: str) -> ServingModel:
        """An application of one version, which is pointed to."""
        found = ServingModel(name, self.place, self.place / "graphs" / name, self.sizes.values)
        version = found.write(0)
        with found.pointing() as pointing:
            pointing.publish(version)
        return found

    def node(self, model: ServingModel, name: str, more: tuple[str, ...] = ()) -> ServingNode:
        """A node, not waited for."""
        return ServingNode(model, name, self.place, (*self.sizes.settings, *more))

    def load(self, model: ServingModel, node: ServingNode) -> Load:
        """The requests of all parts."""
        return node.load(model.messages(model.asked(_REQUESTS)))

    def contender(self, name: str, model: ServingModel, node: ServingNode) -> Contender:
        """A node that is measured beside others."""
        return Contender(name, self.load(model, node), node.process.pause, node.process.resume)

    def starts(self, model: ServingModel, stack: ExitStack) -> list[ServingNode]:
        """Two nodes; the first compiles all there is, and others begin with that."""
        first, seconds = stack.enter_context(self.node(model, "node-1")), list[float]()
        cold_s = first.meters()[_COMPILE_S]
        for at in range(self.sizes.starts):
            second = stack.enter_context(self.node(model, f"node-{at + 2}"))
            seconds.append(second.meters()[_COMPILE_S])
            if at + 1 < self.sizes.starts:
                second.close()
        self.figures({"compile_cold_s": cold_s, "compile_warm_s": statistics.median(seconds)})
        self.figures({"compile_warm_to_cold": statistics.median(seconds) / cold_s})
        return [first, second]

    def latency(self, model: ServingModel, node: ServingNode) -> None:
        """One caller who waits, and executables alone."""
        asked, seconds = model.asked(_REQUESTS), self.sizes.seconds
        load = node.load(model.messages(asked), connections=1)
        p50, p99, bare_p50, used_us = (list[float]() for _ in range(4))
        with BareExecutables(self.place / "graphs", self.place / "compiled", self.sizes.settings) as bare:
            for at in range(self.sizes.rounds):
                bare_p50.append(statistics.median(bare.taken_us(seconds, asked.candidates)) / 1e3)
                begin_s = node.cpu_s()
                one = one_caller(load, seconds, at)
                used_us.append((node.cpu_s() - begin_s) / one.ok * 1e6)
                p50.append(one.latency_ms["p50"] or 0.0)
                p99.append(one.latency_ms["p99"] or 0.0)
        self.figures(
            {
                "p50_c1_ms": statistics.median(p50),
                "p99_c1_ms": statistics.median(p99),
                "bare_p50_ms": statistics.median(bare_p50),
                "over_bare_ms": statistics.median(one - other for one, other in zip(p50, bare_p50, strict=True)),
                "c1_node_cpu_us": statistics.median(used_us),
            }
        )

    def merging(self, model: ServingModel, node: ServingNode, name: str) -> float:
        """Answers a second of a node that merges, and of one whose TensorBatches hold a request each."""
        with self.node(model, f"alone-{name}", _ALONE) as alone:
            both = [self.contender("merging", model, node), self.contender("alone", model, alone)]
            found = answers_per_s_of(both, self.sizes.rounds, self.sizes.seconds)
            for one, asked in zip((node, alone), both, strict=True):
                used_us = cpu_us(asked.load, one.cpu_s, self.sizes.seconds)
                self.figures({f"{asked.name}_node_cpu_us_{name}": used_us})
        ratios = [on / off for on, off in zip(found["merging"], found["alone"], strict=True)]
        self.figures({f"answers_per_s_{name}": statistics.median(found["merging"])})
        self.result.ratios[f"merging_{name}"] = statistics.median(ratios)
        return statistics.median(found["merging"])

    @contextmanager
    def peers(self, model: ServingModel, node: ServingNode, names: Sequence[str]) -> Iterator[list[Contender]]:
        """Peers that serve the same; one that cannot be had leaves its ratios out."""
        asked = model.asked(_REQUESTS)
        load = node.load(model.messages(asked)[:_COMPARED], connections=1)
        (label,) = model.folder.app.labels
        answers = [InferAnswer.decode(load.ask(at)).outputs[label.name].numbers for at in range(_COMPARED)]
        workload = model.workload(asked, [one.reshape(-1) for one in answers])
        with ExitStack() as stack:
            found = []
            for name in names:
                try:
                    if not ready_servers([name], self.note):
                        continue
                    peer = stack.enter_context(PeerServer(name, workload))
                except ServiceError as error:
                    self.result.unmeasured[f"ratio_{name}, {model.name}"] = str(error).splitlines()[0]
                    self.note(f"{name}: {error}")
                    continue
                # It stands still while the next one starts.
                peer.pause()
                found.append(Contender(name, peer.load, peer.pause, peer.resume))
            yield found

    def goodput(self, own: Contender, others: Sequence[Contender], suffix: str, *, quick: bool) -> float:
        """The highest rate that holds, of us and of peers."""
        found = peaks([own, *others], self.sizes.rounds, self.note, quick=quick)
        rates = [rate for rate in found[own.name] if not math.isnan(rate)]
        if not rates:
            message = "no rate was found that the node holds"
            raise ServiceError(message, help="what each search said is above; see what else the machine does")
        self.figures({f"goodput{suffix}": statistics.median(rates)})
        for one in others:
            pairs = zip(found[own.name], found[one.name], strict=True)
            both = [(ours, theirs) for ours, theirs in pairs if not math.isnan(ours + theirs)]
            if not both:
                self.result.unmeasured[f"ratio_{one.name}{suffix}"] = "no rate was found that it holds"
                continue
            self.figures({f"{one.name}_goodput{suffix}": statistics.median(theirs for _, theirs in both)})
            ratio = statistics.median(ours / theirs for ours, theirs in both)
            self.result.ratios[f"ratio_{one.name}{suffix}"] = ratio
        return statistics.median(rates)

    def padding(self, model: ServingModel) -> None:
        """Which share of what is executed is padding, where each request runs alone."""
        buckets = model.folder.settings.serving.candidates_buckets
        counts = model.asked(20_000).candidates
        whole, rest = np.divmod(counts, buckets[-1])
        padded = np.array([0, *buckets])[np.searchsorted([0, *buckets], rest)]
        self.result.ratios["padding_waste"] = 1 - float(counts.sum()) / float((whole * buckets[-1] + padded).sum())
