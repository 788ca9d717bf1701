"""Parts of the benchmark of serving. Each records its figures; after a failed part the others run."""

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
from benchmarks.nodes.serving_model import REQUESTS, ServingModel
from benchmarks.nodes.serving_nodes import ServingNode
from benchmarks.nodes.serving_peers import PeerServer, ready_servers
from benchmarks.result import Result
from streamlearn.errors import ServiceError, StreamlearnError
from streamlearn.load.load_run import Load
from streamlearn.serving.infer import InferAnswer

__all__ = ["Parts", "Sizes"]

Note = Callable[[str], None]

_COMPARED = 4
_COMPILE_S = "streamlearn_serving_compile_seconds_total"
# With this setting each TensorBatch holds one request.
_ALONE = ("serving.users_buckets=[1]",)


@dataclass(frozen=True)
class Sizes:
    """The sizes of a run.

    Attributes:
        values: Number of values of each slot; twenty slots have rows.
        delta_rows: Number of rows of a delta.
        seconds: Duration of a run.
        rounds: Number of repeats.
        starts: Number of starts of nodes with compiled code.
        rollbacks: Number of rollbacks.
        switches: Number of rounds, and of switches in each.
        deltas: Number of deltas.
        settings: Settings of nodes, for `--set`.
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
    """The parts of a run.

    Args:
        sizes: The sizes.
        note: Called with lines of progress.
        result: Receives the figures.
        place: A folder for all files.
    """

    def __init__(self, sizes: Sizes, note: Note, result: Result, place: Path) -> None:
        self.sizes, self.note, self.result, self.place = sizes, note, result, place

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run a part. Print its error, if it has one; the command then fails at the end."""
        self.note(name)
        try:
            yield
        except StreamlearnError as error:
            self.result.failures.append(name)
            self.result.unmeasured[name] = str(error).splitlines()[0]
            self.note(f"{name}: {error}")

    def figures(self, values: Mapping[str, float]) -> None:
        """Record figures; those with `_to_` in their names, which are not times, are ratios."""
        for name, value in values.items():
            is_ratio = "_to_" in name and not name.endswith("_ms")
            (self.result.ratios if is_ratio else self.result.figures)[name] = value

    def model(self, name: str) -> ServingModel:
        """Return an application with one version, which the pointer names."""
        model = ServingModel(name, self.place, self.place / "graphs" / name, self.sizes.values)
        version = model.write(0)
        with model.pointing() as pointing:
            pointing.publish(version)
        return model

    def node(self, model: ServingModel, name: str, more: tuple[str, ...] = ()) -> ServingNode:
        """Start a node, without a wait."""
        return ServingNode(model, name, self.place, (*self.sizes.settings, *more))

    def load(self, model: ServingModel, node: ServingNode) -> Load:
        """Return a load with the requests of all parts."""
        return node.load(model.messages(model.requests(REQUESTS)))

    def contender(self, name: str, model: ServingModel, node: ServingNode) -> Contender:
        """Return a node as a contender."""
        return Contender(name, self.load(model, node), node.process.pause, node.process.resume)

    def starts(self, model: ServingModel, stack: ExitStack) -> list[ServingNode]:
        """Return two nodes: the first compiles everything, and the second starts with its compiled code."""
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
        """Measure the latency of one waiting caller, and of the executables alone."""
        requests, seconds = model.requests(REQUESTS), self.sizes.seconds
        load = node.load(model.messages(requests), connections=1)
        p50, p99, bare_p50, used_us = (list[float]() for _ in range(4))
        with BareExecutables(self.place / "graphs", self.place / "compiled", self.sizes.settings) as bare:
            for at in range(self.sizes.rounds):
                bare_p50.append(statistics.median(bare.taken_us(seconds, requests.candidates)) / 1e3)
                begin_s = node.cpu_s()
                result = one_caller(load, seconds, at)
                used_us.append((node.cpu_s() - begin_s) / result.ok * 1e6)
                p50.append(result.latency_ms["p50"] or 0.0)
                p99.append(result.latency_ms["p99"] or 0.0)
        self.figures(
            {
                "p50_c1_ms": statistics.median(p50),
                "p99_c1_ms": statistics.median(p99),
                "bare_p50_ms": statistics.median(bare_p50),
                "over_bare_ms": statistics.median(
                    node_ms - bare_ms for node_ms, bare_ms in zip(p50, bare_p50, strict=True)
                ),
                "c1_node_cpu_us": statistics.median(used_us),
            }
        )

    def merging(self, model: ServingModel, node: ServingNode, name: str) -> float:
        """Measure answers per second of a node that merges requests, and of one that does not."""
        with self.node(model, f"alone-{name}", _ALONE) as alone:
            both = [self.contender("merging", model, node), self.contender("alone", model, alone)]
            rates = answers_per_s_of(both, self.sizes.rounds, self.sizes.seconds)
            for process, contender in zip((node, alone), both, strict=True):
                used_us = cpu_us(contender.load, process.cpu_s, self.sizes.seconds)
                self.figures({f"{contender.name}_node_cpu_us_{name}": used_us})
        ratios = [on / off for on, off in zip(rates["merging"], rates["alone"], strict=True)]
        self.figures({f"answers_per_s_{name}": statistics.median(rates["merging"])})
        self.result.ratios[f"merging_{name}"] = statistics.median(ratios)
        return statistics.median(rates["merging"])

    @contextmanager
    def peers(self, model: ServingModel, node: ServingNode, names: Sequence[str]) -> Iterator[list[Contender]]:
        """Start peers that serve the same model; without a peer its ratios are missing."""
        requests = model.requests(REQUESTS)
        load = node.load(model.messages(requests)[:_COMPARED], connections=1)
        (label,) = model.folder.app.labels
        answers = [InferAnswer.decode(load.ask(at)).outputs[label.name].numbers for at in range(_COMPARED)]
        workload = model.workload(requests, [answer.reshape(-1) for answer in answers])
        with ExitStack() as stack:
            contenders = []
            for name in names:
                try:
                    if not ready_servers([name], self.note):
                        continue
                    peer = stack.enter_context(PeerServer(name, workload))
                except ServiceError as error:
                    self.result.unmeasured[f"ratio_{name}, {model.name}"] = str(error).splitlines()[0]
                    self.note(f"{name}: {error}")
                    continue
                # It is paused while the next one starts.
                peer.pause()
                contenders.append(Contender(name, peer.load, peer.pause, peer.resume))
            yield contenders

    def goodput(self, own: Contender, others: Sequence[Contender], suffix: str, *, quick: bool) -> float:
        """Measure the highest sustained rate of our node and of peers."""
        rates_of = peaks([own, *others], self.sizes.rounds, self.note, quick=quick)
        rates = [rate for rate in rates_of[own.name] if not math.isnan(rate)]
        if not rates:
            message = "found no rate that the node sustains"
            raise ServiceError(message, help="see the messages above, and check what else runs on the machine")
        self.figures({f"goodput{suffix}": statistics.median(rates)})
        for other in others:
            pairs = zip(rates_of[own.name], rates_of[other.name], strict=True)
            both = [(ours, peer) for ours, peer in pairs if not math.isnan(ours + peer)]
            if not both:
                self.result.unmeasured[f"ratio_{other.name}{suffix}"] = "found no rate that it sustains"
                continue
            self.figures({f"{other.name}_goodput{suffix}": statistics.median(peer for _, peer in both)})
            ratio = statistics.median(ours / peer for ours, peer in both)
            self.result.ratios[f"ratio_{other.name}{suffix}"] = ratio
        return statistics.median(rates)

    def padding(self, model: ServingModel) -> None:
        """Compute the share of padding in executed rows if each request runs alone."""
        buckets = model.folder.settings.serving.candidates_buckets
        counts = model.requests(20_000).candidates
        whole, rest = np.divmod(counts, buckets[-1])
        padded = np.array([0, *buckets])[np.searchsorted([0, *buckets], rest)]
        self.result.ratios["padding_waste"] = 1 - float(counts.sum()) / float((whole * buckets[-1] + padded).sum())
