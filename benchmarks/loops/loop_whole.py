"""Whole: every part of the loop as a local process, from the producer to the nodes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from benchmarks.loops.loop_answers import Answers
from benchmarks.loops.loop_part import LoopPart
from benchmarks.nodes.serving_model import Pointing
from benchmarks.streams.ingest_events import create_topics
from streamlearn.apps import AppFolder, load_app
from streamlearn.load.synthetic_requests import invented
from streamlearn.versions import History, Mover, PointerLog, open_registry, open_store
from tools.services import free_ports, prism_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

__all__ = ["Shape", "Whole"]

_APPS = Path(__file__).parents[1]
_PARTITIONS, _CANDIDATES, _VALUES = 2, 8, 1_000
_READY_S_MAX = 300.0


@dataclass(frozen=True)
class Shape:
    """The parts of a loop.

    Attributes:
        model: `deepfm` or `logistic`.
        shards: Number of shards of the parameter server; 0 keeps tables in the trainer.
        nodes: Number of serving nodes.
        interval_s: Time between versions.
        changes: Settings for `--set` of topics, registry and runner; the default is files and Prism.
    """

    model: str = "deepfm"
    shards: int = 0
    nodes: int = 1
    interval_s: float = 1.0
    changes: tuple[str, ...] = ()


class Whole:
    """The loop of an application; the constructor starts it.

    Args:
        shape: The parts.
        place: The folder of logs, versions and file topics.
        note: Called with lines of progress.

    Attributes:
        folder: The application.
        ingest: The process of ingest.
        trainer: The process of the trainer.
        shards: The processes of shards.
        nodes: The processes of nodes.
        answers: The answers of each node.
    """

    def __init__(self, shape: Shape, place: Path, note: Callable[[str], None]) -> None:
        self._place, self._note, self._producers = place, note, 0
        settings = (
            f"topics.root=file://{place}/topics",
            f"versions.store={place}/versions",
            f"registry.url=sqlite://{place}/registry.db",
            f"ingest.prism_location={prism_path()}",
            f"serving.cache_folder={place.parent}/compiled",
            f"publisher.publish_interval_s={shape.interval_s}",
            f"validation.folder={place}/validation",
            "telemetry.log_level=warning",
        )
        self._changes = (*settings, *shape.changes)
        self._app = _APPS / f"loop_{shape.model}"
        self.folder: AppFolder = load_app(self._app, self._changes)
        create_topics(self.folder, _PARTITIONS)
        with ExitStack() as stack:
            self._start(shape, stack)
            self._stack = stack.pop_all()

    @contextmanager
    def producing(self, rate: float, seconds: float) -> Iterator[LoopPart]:
        """Run a producer of `rate` events per second for `seconds`."""
        self._producers += 1
        words = ("benchmarks.streams.ingest_live", str(self._app), "--go-on", "--seed", str(self._producers))
        more = ("--rate", str(rate), "--seconds", str(seconds))
        producer = LoopPart(f"producer-{self._producers}", (*words, *more), self._place, self._changes)
        try:
            yield producer
        finally:
            producer.close()

    @contextmanager
    def pointing(self) -> Iterator[Pointing]:
        """Return an object that moves the pointer."""
        store, model = open_store(self.folder.store_url), self.folder.app.name
        with open_registry(self.folder.registry_url, model) as registry:
            yield Pointing(Mover(PointerLog(store, model), registry), History(store, model))

    def close(self) -> None:
        """Stop all parts, the last one first."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, shape: Shape, stack: ExitStack) -> None:
        def part(name: str, *words: str, more: tuple[str, ...] = ()) -> LoopPart:
            process = LoopPart(name, words, self._place, (*self._changes, *more))
            stack.callback(process.close)
            return process

        app, ports = str(self._app), free_ports(shape.shards + shape.nodes)
        shards_at = [f"127.0.0.1:{port}" for port in ports[: shape.shards]]
        self.shards = [
            part(
                f"shard-{at}", "streamlearn", "ps", "--app", app, "--listen", address, "--shard", f"{at}/{shape.shards}"
            )
            for at, address in enumerate(shards_at)
        ]
        for shard in self.shards:
            shard.wait_logged(" listens at ", _READY_S_MAX)
        quoted = ", ".join(f'"{address}"' for address in shards_at)
        self.ingest = part("ingest", "streamlearn", "ingest", app)
        self.trainer = part("trainer", "streamlearn", "train", app, more=(f"ps.addresses=[{quoted}]",))
        nodes_at = [f"127.0.0.1:{port}" for port in ports[shape.shards :]]
        self.nodes = [
            part(
                f"node-{at}", "streamlearn", "serve", app, "--name", f"node-{at}", "--listen", address, "--http", "none"
            )
            for at, address in enumerate(nodes_at)
        ]  # fmt: skip
        asked = invented(self.folder.app.features, np.full(1, _CANDIDATES), _VALUES, np.random.default_rng(1))
        (message,) = asked.messages(self.folder.app.features, self.folder.app.name)
        for node in self.nodes:
            node.wait_logged(" is served at grpc ", _READY_S_MAX)
        self.answers = [Answers(address, message) for address in nodes_at]
        for answers in self.answers:
            stack.callback(answers.close)
        self._note(f"{len(self.shards)} shards, {len(self.nodes)} nodes, ingest and the trainer are running")
