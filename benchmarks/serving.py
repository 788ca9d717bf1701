"""Serving: nodes of two lanes on the machine of their callers, with DIN and with a very cheap model."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path

from benchmarks.nodes.serving_bare import export
from benchmarks.nodes.serving_life import InterleavedLoad, apart, publications, rollbacks, stranger, switches, unseen
from benchmarks.nodes.serving_load import overload
from benchmarks.nodes.serving_model import Pointing, ServingModel
from benchmarks.nodes.serving_nodes import ServingNode
from benchmarks.nodes.serving_parts import Parts, Sizes
from benchmarks.nodes.serving_peers import SERVING_PEERS
from benchmarks.ours.streamlearn_serving import OTHERS
from benchmarks.result import Result
from streamlearn.errors import ServiceError, UsageError
from tools.services import Redis

__all__ = ["run"]

Note = Callable[[str], None]

_FEW = ("serving.users_buckets=[1,16]", "serving.candidates_buckets=[16,64,256]")
_QUICK = Sizes(5_000, 100_000, 1, 1, 1, 5, (2, 20), 1, _FEW)
# Load during other work, as a share of the peak; and the share of the saturated rate that stands in for a peak.
_PEAK_SHARE, _SATURATED_SHARE = 0.5, 0.3
_FEW_ROWS = 1_000
_QUARTER, _APART = "quarter.", "apart."


def run(quick: bool, note: Note, only: str = "") -> Result:
    """Measure everything; if quick, only DIN, with a short ladder and without peers.

    `only` may be `life`: what version changes do to callers.
    """
    result = Result("serving")
    if only not in ("", "life"):
        message = f"serving has no part {only!r}"
        raise UsageError(message, help="use --only life")
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder:
        place = Path(folder)
        parts = Parts(_QUICK if quick else Sizes(), note, result, place)
        note("export graphs")
        export(place / "graphs")
        if only:
            with parts.part("life"):
                _Serving(parts, quick).life()
            return result
        with parts.part("DIN"):
            _Serving(parts, quick).din()
        if not quick:
            with parts.part("small"):
                _Serving(parts, quick).small()
    return result


class _Serving:
    """A run: the parts in their order."""

    def __init__(self, parts: Parts, quick: bool) -> None:
        self.parts, self.quick, self.sizes = parts, quick, parts.sizes
        self.rate, self.peak, self._others = 0.0, 0.0, list(OTHERS)

    def din(self) -> None:
        """Measure everything with DIN."""
        parts, model = self.parts, self.parts.model("serving_din")
        parts.padding(model)
        with ExitStack() as stack:
            node, second = parts.starts(model, stack)
            second.process.pause()
            with parts.part("one caller"):
                parts.latency(model, node)
            self._throughput(model, node, "din", "")
            with parts.part("overload"):
                load = parts.load(model, node)
                ratio = overload(load, self.peak, self.sizes.rounds, self.sizes.seconds)
                parts.result.ratios["overload_goodput"] = ratio
            with parts.part("unseen shapes"):
                parts.figures(unseen(node, model))
            second.process.resume()
            version = model.write(self.sizes.delta_rows // 10)
            with model.pointing() as pointing:
                pointing.publish(version)
                self._rollbacks(model, [node, second], pointing, "sqlite")
                if self.quick:
                    second.close()
                    self._life(model, node, pointing, (1, 2))
        if not self.quick:
            self._on_redis(model)

    def life(self) -> None:
        """Measure version changes alone."""
        parts, model = self.parts, self.parts.model("serving_din")
        with parts.node(model, "life-1") as node, model.pointing() as pointing:
            self._cells(model, node, pointing)

    def small(self) -> None:
        """Measure throughput with the very cheap model."""
        model = self.parts.model("serving_small")
        with self.parts.node(model, "small-1") as node:
            self._throughput(model, node, "small", "_small")

    def _throughput(self, model: ServingModel, node: ServingNode, name: str, suffix: str) -> None:
        with self.parts.part(f"merging, {name}"):
            self.rate = self.parts.merging(model, node, name) * _SATURATED_SHARE
        with self.parts.part(f"goodput, {name}"):
            own = self.parts.contender("streamlearn", model, node)
            with self.parts.peers(model, node, () if self.quick else tuple(SERVING_PEERS)) as others:
                self.peak = self.parts.goodput(own, others, suffix, quick=self.quick)
            # On a machine too busy for a peak, later parts still need a load.
            self.rate = max(self.peak * _PEAK_SHARE, self.rate * _PEAK_SHARE)

    def _on_redis(self, model: ServingModel) -> None:
        """Measure nodes with a Redis registry on the same store; with a file if there is no Redis."""
        with ExitStack() as stack:
            try:
                model.registry_url = stack.enter_context(Redis.start(self.parts.place / "redis")).url
                name = "redis"
            except ServiceError as error:
                self.parts.result.unmeasured["rollback_to_reply_redis_ms"] = str(error).splitlines()[0]
                name = ""
            nodes = [stack.enter_context(self.parts.node(model, f"life-{at}")) for at in range(2 if name else 1)]
            with model.pointing() as pointing:
                self.parts.note(f"{len(nodes)} nodes are at {', '.join(node.grpc for node in nodes)}")
                if name:
                    self._rollbacks(model, nodes, pointing, name)
                    nodes[1].close()
                self._cells(model, nodes[0], pointing)

    def _rollbacks(self, model: ServingModel, nodes: list[ServingNode], pointing: Pointing, name: str) -> None:
        with self.parts.part(f"rollbacks, {name}"):
            taken_ms = rollbacks(nodes, pointing, model, self.sizes.rollbacks)
            figure = f"rollback_to_reply_{name}"
            self.parts.figures({f"{figure}_ms": statistics.median(taken_ms), f"{figure}_max_ms": max(taken_ms)})

    def _cells(self, model: ServingModel, node: ServingNode, pointing: Pointing) -> None:
        """Measure version changes at half and at a quarter of the peak, beside the callers and with a core apart."""
        for prefix in ("", _APART):
            with apart(node.process.pid) if prefix else nullcontext():
                own = self.parts.contender("streamlearn", model, node)
                with self.parts.part(f"goodput of {prefix}life"):
                    peak = self.parts.goodput(own, (), f"_{prefix}life".replace(".", "_"), quick=self.quick)
                    for share, name in ((_PEAK_SHARE, ""), (_PEAK_SHARE / 2, _QUARTER)):
                        self.rate = peak * share
                        older, newer = (_published(model, pointing) for _ in range(2))
                        self._life(model, node, pointing, (older, newer), prefix + name)

    def _life(
        self, model: ServingModel, node: ServingNode, pointing: Pointing, between: tuple[int, int], prefix: str = ""
    ) -> None:
        """Measure switches, deltas and new graphs under load; names of figures begin with `prefix`."""
        parts, load = self.parts, self.parts.load(model, node)

        def figures(work: str, own: Mapping[str, float], interleaved: InterleavedLoad) -> None:
            every = {**own, **interleaved.figures(work)}
            parts.figures({prefix + name: value for name, value in every.items()})

        def loaded() -> InterleavedLoad:
            return InterleavedLoad(load, self.rate, self.sizes.seconds)

        with parts.part(f"{prefix}stranger"):
            interleaved = loaded()
            stranger(interleaved, self.sizes.rounds)
            figures("stranger", {}, interleaved)
        with parts.part(f"{prefix}switches"):
            interleaved = loaded()
            switched = switches(node, pointing, between, interleaved, self.sizes.switches)
            figures("switches", switched, interleaved)
        with parts.part(f"{prefix}deltas"):
            pointing.release()
            interleaved, rows = loaded(), self.sizes.delta_rows
            taken_ms = publications(pointing, lambda: model.prepare(rows), interleaved, self.sizes.deltas)
            figures("delta", {"delta_ms": taken_ms}, interleaved)
        if not self.quick:
            with parts.part(f"{prefix}new graphs"):
                interleaved, other = loaded(), parts.place / "graphs" / self._others.pop(0)
                taken_ms = publications(pointing, lambda: model.prepare(_FEW_ROWS, other), interleaved, 1)
                figures("new_graph", {"new_graph_ms": taken_ms}, interleaved)


def _published(model: ServingModel, pointing: Pointing) -> int:
    """Publish a version with the application's own graphs, which a node has compiled."""
    version = model.write(_FEW_ROWS)
    pointing.look()
    pointing.publish(version)
    return version
