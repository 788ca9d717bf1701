"""Access: Envoy in front of nodes: what it adds, and nodes that are slow, killed and overloaded.

What Envoy adds is measured with DIN. Other parts use nodes whose lanes wait instead of computing, so that several fit
on one machine: there the processors hold Envoy and the callers.
"""

from __future__ import annotations

import json
import math
import signal
import statistics
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

from benchmarks.nodes.serving_bare import export
from benchmarks.nodes.serving_life import apart, switches_through
from benchmarks.nodes.serving_load import P99_MS_MAX, answers_per_s_of, overload, peaks, poisson
from benchmarks.nodes.serving_model import ServingModel
from benchmarks.nodes.serving_nodes import ServingNode, cpu_s_of
from benchmarks.nodes.serving_parts import Parts, Sizes
from benchmarks.nodes.small_node import FEATURES, SETTINGS, Order, SmallNode, small_nodes
from benchmarks.nodes.split_request import split_figures
from benchmarks.result import Result
from streamlearn.errors import ServiceError
from streamlearn.gateway.envoy import Certificates
from streamlearn.gateway.envoy_process import EnvoyProcess, ask_admin
from streamlearn.gateway.follow import Follower
from streamlearn.gateway.plan import Application
from streamlearn.load.goodput import find_goodput
from streamlearn.load.load_run import Load, LoadPlan, LoadProgress, LoadResult
from streamlearn.load.synthetic_requests import invented
from streamlearn.serving.infer import InferAnswer
from streamlearn.settings.access import Arm, Experiment, GatewaySettings
from streamlearn.settings.versions import RegistrySettings
from streamlearn.versions import open_registry
from tools.services import Cache, free_ports
from tools.services.envoy import Envoy

__all__ = ["run"]

Note = Callable[[str], None]

_LIVE_S, _FOLLOW_S, _KILL_S = 30.0, 0.5, 2.0
# An execution of a small node, and of a slow one.
_TOOK_MS, _SLOW_MS = 2.0, 22.0
_SEEN_S, _RUN_S, _USERS = 12.0, 8, 2_000
# The share of the saturated rate that stands in for a peak.
_SATURATED_SHARE = 0.3
_ROUND_ROBIN = {
    "name": "envoy.load_balancing_policies.round_robin",
    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin"},
}
_QUICK = Sizes(
    5_000, 100_000, 2, 1, 1, 5, (1, 20), 1,
    ("serving.users_buckets=[1,16]", "serving.candidates_buckets=[16,64,256]"),
)  # fmt: skip


def run(quick: bool, note: Note) -> Result:
    """Measure everything; if quick, with fewer and shorter runs."""
    result = Result("access")
    sizes = _QUICK if quick else Sizes()
    with tempfile.TemporaryDirectory(prefix="sl-bench-") as folder:
        place = Path(folder)
        try:
            program = Envoy.fetch(Cache())
        except ServiceError as error:
            result.unmeasured["all"] = str(error).splitlines()[0]
            return result
        parts = Parts(sizes, note, result, place)
        bench = _Access(parts, program, quick)
        for name, part in (
            ("a slow node", bench.slow_node),
            ("a node that is killed", bench.killed),
            ("overload", bench.overload),
            ("arms", bench.arms),
            ("what Envoy adds, with DIN", bench.added),
            ("a large request over two nodes", bench.split),
        ):
            with parts.part(name):
                part()
    return result


class _Access:
    """A run: its parts."""

    def __init__(self, parts: Parts, program: Path, quick: bool) -> None:
        self.parts, self.program, self.quick = parts, program, quick
        self.seconds = 3 if quick else _RUN_S
        random = np.random.default_rng(0)
        requests = invented(FEATURES, np.full(500, 4, np.int64), 1_000, random)
        self.messages = requests.messages(FEATURES, "ctr")

    @cached_property
    def din(self) -> ServingModel:
        """The application that computes."""
        export(self.parts.place / "graphs", "serving_din")
        return self.parts.model("serving_din")

    def split(self) -> None:
        """A request of 2,000 candidates over two nodes of a core each."""
        split_figures(self.parts, self.din, 2 if self.quick else self.parts.sizes.seconds)

    @contextmanager
    def small(self, took_ms: Sequence[float]) -> Iterator[tuple[str, list[SmallNode]]]:
        """Yield the registry, and nodes whose executions take these times."""
        registry = f"sqlite://{self.parts.place}/{time.time_ns()}.db"
        orders = [Order(registry, "ctr", "ctr", f"n{number}", number, took) for number, took in enumerate(took_ms, 1)]
        with small_nodes(orders) as nodes:
            yield registry, nodes

    @contextmanager
    def envoy(
        self,
        registries: dict[str, str],
        served: str,
        *,
        round_robin: bool = False,
        known: RegistrySettings = SETTINGS,
        **changes: object,
    ) -> Iterator[tuple[str, Path, EnvoyProcess]]:
        """Yield the address of an Envoy in front of all nodes of applications, its folder and the process."""
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        settings = GatewaySettings(listen=listen, **changes)  # type: ignore[arg-type]
        folder = Path(tempfile.mkdtemp(prefix="e", dir=self.parts.place))
        with ExitStack() as held:
            opened = [held.enter_context(open_registry(url, app, known)) for app, url in registries.items()]
            applications = [
                Application(app, served, settings if number == 0 else GatewaySettings())
                for number, app in enumerate(registries)
            ]
            follower = Follower(applications, opened, folder, Certificates())
            nodes = sum(len(backend.endpoints) for backend in follower.step().backends)
            if round_robin:
                file = folder / "cds.json"
                content = json.loads(file.read_text())
                for one in content["resources"]:
                    one["load_balancing_policy"] = {"policies": [{"typed_extension_config": _ROUND_ROBIN}]}
                file.write_text(json.dumps(content))
            envoy = held.enter_context(EnvoyProcess(folder, program=str(self.program)))
            envoy.wait_live(_LIVE_S)
            _wait_healthy(folder, nodes)
            ended = Event()

            def follow() -> None:
                while not ended.wait(_FOLLOW_S):
                    if not round_robin:
                        follower.step()

            thread = Thread(target=follow)
            thread.start()
            try:
                yield listen, folder, envoy
            finally:
                ended.set()
                thread.join()

    def load(self, address: str) -> Load:
        """Return a load of small requests."""
        return Load(address, self.messages, connections=4)

    def slow_node(self) -> None:
        """One of four nodes takes 20 ms longer: the tail to that of four healthy ones, and with round robin."""
        rate = 0.5 * 4 * 1_000 / _TOOK_MS
        plan = LoadPlan("poisson", rate, self.seconds, _SEEN_S, deadline_ms=1_000, keeps_answers=True)
        measured = {}
        for name, took, round_robin in (
            ("healthy", [_TOOK_MS] * 4, False),
            ("load", [_TOOK_MS] * 3 + [_SLOW_MS], False),
            ("round_robin", [_TOOK_MS] * 3 + [_SLOW_MS], True),
        ):
            with (
                self.small(took) as (registry, _),
                self.envoy({"ctr": registry}, "ctr", round_robin=round_robin) as (address, _, _),
            ):
                result = self.load(address).run(plan)
                versions = Counter(_version(answer) for _, _, answer in result.answers if answer)
                measured[name] = result, versions[4] / max(1, sum(versions.values()))
                self.parts.note(f"{name}: p99 {result.latency_ms['p99']:.1f} ms, {measured[name][1]:.1%} to the last")
        healthy, slow, turns = (measured[name][0] for name in ("healthy", "load", "round_robin"))
        self.parts.figures(
            {
                "slow_node_share": measured["load"][1],
                "slow_node_p95_to_healthy": _ms(slow, "p95") / _ms(healthy, "p95"),
                "slow_node_p99_to_round_robin": _ms(slow, "p99") / _ms(turns, "p99"),
            }
        )

    def killed(self) -> None:
        """One of three nodes is killed at half the load."""
        rate = 0.5 * 3 * 1_000 / _TOOK_MS
        plan = LoadPlan("poisson", rate, self.seconds, _SEEN_S / 2, deadline_ms=1_000, keeps_answers=True)
        with self.small([_TOOK_MS] * 3) as (registry, nodes), self.envoy({"ctr": registry}, "ctr") as (address, _, _):
            killed_s, in_flight = list[float](), [1]
            begin_s = time.monotonic()

            def seen(progress: LoadProgress) -> None:
                if not killed_s and time.monotonic() - begin_s > plan.warmup_s + _KILL_S:
                    in_flight[0] = max(1, progress.outstanding)
                    nodes[0].signal(signal.SIGKILL)
                    killed_s.append(time.monotonic() - begin_s)

            result = self.load(address).run(plan, seen)
            if not killed_s:
                message = "the run ended before the node was killed"
                raise ServiceError(message)
            failed_ns = [due for _, due, answer in result.answers if answer is None]
            self.parts.note(f"{len(failed_ns)} failed of {result.due}, {in_flight[0]} in flight: {result.refused}")
            self.parts.figures(
                {
                    "killed_failed": len(failed_ns),
                    "killed_failed_over_in_flight": len(failed_ns) / in_flight[0],
                    "killed_errors_after_1s": sum(due / 1e9 > killed_s[0] + 1.0 for due in failed_ns),
                }
            )

    def overload(self) -> None:
        """Twice the load that two nodes sustain."""
        with self.small([_TOOK_MS] * 2) as (registry, _), self.envoy({"ctr": registry}, "ctr") as (address, folder, _):
            load = self.load(address)
            begin = 0.5 * 2 * 1_000 / _TOOK_MS
            peak = find_goodput(load.run, LoadPlan("poisson", begin, self.seconds, 1.0), P99_MS_MAX).rate
            self.parts.note(f"two nodes sustain {peak:,.0f} requests/s through Envoy")
            before = _figure(folder, "upstream_rq_retry"), _figure(folder, "upstream_rq_total")
            ratio = overload(load, peak, 1 if self.quick else self.parts.sizes.rounds, self.seconds)
            retries = _figure(folder, "upstream_rq_retry") - before[0]
            sent = _figure(folder, "upstream_rq_total") - before[1]
            ejected = _figure(folder, "outlier_detection.ejections_enforced_total")
            self.parts.figures(
                {"envoy_overload_goodput": ratio, "envoy_retries": retries / max(1, sent), "envoy_ejections": ejected}
            )

    def arms(self) -> None:
        """Users in an experiment, asked twice."""
        listed = [Arm(name="old", app="ctr", share=0.9), Arm(name="new", app="ctr2", share=0.1)]
        registry = f"sqlite://{self.parts.place}/arms.db"
        orders = [Order(registry, app, "ctr", app, number) for number, app in enumerate(("ctr", "ctr2"), 1)]
        changes: dict[str, Any] = {"trust_headers": True, "experiments": [Experiment(name="x", arms=listed)]}
        with small_nodes(orders):
            answers = []
            for _ in range(2):  # by two processes of Envoy
                running = self.envoy({"ctr": registry, "ctr2": registry}, "ctr", **changes)
                with running as (address, _, _), ThreadPoolExecutor(8) as callers:
                    answers.append(list(callers.map(partial(_arm, address), range(_USERS))))
        sigma = math.sqrt(0.1 * 0.9 * _USERS)
        self.parts.figures(
            {
                "arm_changed_users": sum(a != b for a, b in zip(*answers, strict=True)),
                "arm_share_sigmas": abs(answers[0].count(2) - 0.1 * _USERS) / sigma,
            }
        )

    def added(self) -> None:
        """A node of DIN at half the rate that it sustains, direct and through Envoy by turns; then switches.

        Then the same with the node on cores of its own, where Envoy and the callers do not wait for its lanes.
        """
        with self.parts.node(self.din, "node-1") as node:
            self._added(node, "", switches=True)
            with self.parts.part("what Envoy adds, on other cores than the node"), apart(node.process.pid):
                self._added(node, "apart.", switches=False)

    def _added(self, node: ServingNode, kind: str, *, switches: bool) -> None:
        model = self.din
        direct = self.parts.load(model, node)
        contender = self.parts.contender("direct", model, node)
        rate = 0.5 * peaks([contender], 1, self.parts.note, quick=self.quick)["direct"][0]
        if math.isnan(rate):
            # On a machine too busy for a peak, the parts below still need a load.
            saturated = answers_per_s_of([contender], 1, self.seconds)["direct"][0]
            rate = 0.5 * _SATURATED_SHARE * saturated
            name = f"{kind}envoy_at_half_the_goodput"
            self.parts.result.unmeasured[name] = "no rate was sustained: a lower one is used"
        with self.envoy({model.name: model.registry_url}, model.name, known=RegistrySettings()) as (
            address,
            _,
            envoy,
        ):
            through = Load(address, model.messages(model.requests(2_000)), connections=2)
            poisson(through, rate, 2)
            over, ratio, cpu = [], [], []
            for at in range(self.parts.sizes.rounds):
                plain = poisson(direct, rate, self.seconds, at)
                before = cpu_s_of(envoy.pid), node.cpu_s()
                led = poisson(through, rate, self.seconds, at)
                spent = cpu_s_of(envoy.pid) - before[0], node.cpu_s() - before[1]
                over.append(_ms(led, "p50") - _ms(plain, "p50"))
                ratio.append(_ms(led, "p99") / _ms(plain, "p99"))
                cpu.append(spent[0] / spent[1])
            self.parts.figures(
                {
                    f"{kind}envoy_rate": rate,
                    f"{kind}envoy_p50_over_ms": statistics.median(over),
                    f"{kind}envoy_p99_to_direct": statistics.median(ratio),
                    f"{kind}envoy_cpu_to_node": statistics.median(cpu),
                }
            )
            if switches:
                with self.parts.part("switches through Envoy"):
                    self._switches(model, through, rate)

    def _switches(self, model: object, through: Load, rate: float) -> None:
        version = model.write(1_000)  # type: ignore[attr-defined]
        with model.pointing() as pointing:  # type: ignore[attr-defined]
            pointing.publish(version)
            rounds, each = self.parts.sizes.switches
            moves = rounds * each
            self.parts.figures(switches_through(through, pointing, (1, 2), rate, moves, max(1, moves // 20)))


def _wait_healthy(folder: Path, nodes: int) -> None:
    """Wait until this number of nodes get requests by gRPC."""
    end_s = time.monotonic() + _LIVE_S
    while True:
        with suppress(OSError):
            lines = ask_admin(folder, "GET", "/clusters").decode().splitlines()
            if sum("grpc::" in line and line.endswith("health_flags::healthy") for line in lines) == nodes:
                return
        if time.monotonic() > end_s:
            message = f"Envoy does not find {nodes} nodes ready"
            raise ServiceError(message, help="see the nodes' logs")
        time.sleep(0.1)


def _figure(folder: Path, name: str) -> int:
    lines = ask_admin(folder, "GET", "/stats").decode().splitlines()
    found = [line.rpartition(": ") for line in lines if line.startswith("cluster.")]
    return sum(int(value) for key, _, value in found if key.endswith(f".{name}") and value.isdecimal())


def _version(answer: bytes) -> int:
    return int(InferAnswer.decode(answer).version)


def _arm(address: str, user: int) -> int:
    body = b'{"user": {"user_id": 1}, "items": [{"item_id": 2}]}'
    head = {"content-type": "application/json", "x-route-key": f"user-{user}"}
    request = urllib.request.Request(f"http://{address}/score", body, head)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(json.load(answer)["version"])


def _ms(result: LoadResult, quantile: str) -> float:
    return result.latency_ms[quantile] or math.nan
