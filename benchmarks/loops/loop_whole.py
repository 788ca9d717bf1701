"""Whole: every part of the loop as a process of this machine, from the producer to the nodes that answer."""

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
from streamlearn.serving.load.synthetic_requests import invented
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
    """Which parts there are, and where they meet.

    Attributes:
        model: `deepfm` or `logistic`.
        shards: Of the parameter server; 0 keeps tables in the trainer.
        nodes: That serve.
        interval_s: How often a version is published.
        changes: What `--set` says of topics, registry and runner; files and Prism by default.
    """

    model: str = "deepfm"
    shards: int = 0
    nodes: int = 1
    interval_s: float = 1.0
    changes: tuple[str, ...] = ()


class Whole:
    """The loop of one application; it runs when it is made.

    Args:
        shape: Which parts.
        place: Where logs, versions and topics in files are.
        note: Told how far it is.

    Attributes:
        folder: The application.
        ingest: The part that joins.
        trainer: The part that learns.
        shards: Of the parameter server.
        nodes: That serve.
        answers: What nodes answered, by node.
    """

    def __init__(self, shape: Shape, place: Path, note: Callable[[str], None]) -> None:
        self._place, self._note, self._producers = place, note, 0
        where = (
            f"topics.root=file://{place}/topics",
            f"versions.store={place}/versions",
            f"registry.url=sqlite://{place}/registry.db",
            f"ingest.prism_location={prism_path()}",
            f"serving.cache_folder={place.parent}/compiled",
            f"publisher.publish_interval_s={shape.interval_s}",
            f"validation.folder={place}/validation",
            "telemetry.log_level=warning",
        )
        self._changes = (*where, *shape.changes)
        self._app = _APPS / f"loop_{shape.model}"
        self.folder: AppFolder = load_app(self._app, self._changes)
        create_topics(self.folder, _PARTITIONS)
        with ExitStack() as ends:
            self._start(shape, ends)
            self._ends = ends.pop_all()

    @contextmanager
    def producing(self, rate: float, seconds: float) -> Iterator[LoopPart]:
        """Events for so long, so many a second; `process` says when it has ended."""
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
        """Whoever moves the pointer."""
        store, model = open_store(self.folder.store_url), self.folder.app.name
        with open_registry(self.folder.registry_url, model) as registry:
            yield Pointing(Mover(PointerLog(store, model), registry), History(store, model))

    def close(self) -> None:
        """End all of it, the last part first."""
        self._ends.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, shape: Shape, ends: ExitStack) -> None:
        def part(name: str, *words: str, more: tuple[str, ...] = ()) -> LoopPart:
            found = LoopPart(name, words, self._place, (*self._changes, *more))
            ends.callback(found.close)
            return found

        app, ports = str(self._app), free_ports(shape.shards + shape.nodes)
        shards_at = [f"127.0.0.1:{port}" for port in ports[: shape.shards]]
        self.shards = [
            part(f"shard-{at}", "streamlearn", "ps", "--app", app, "--listen", one, "--shard", f"{at}/{shape.shards}")
            for at, one in enumerate(shards_at)
        ]
        for shard in self.shards:
            shard.wait_said(" listens at ", _READY_S_MAX)
        quoted = ", ".join(f'"{one}"' for one in shards_at)
        self.ingest = part("ingest", "streamlearn", "ingest", app)
        self.trainer = part("trainer", "streamlearn", "train", app, more=(f"ps.addresses=[{quoted}]",))
        nodes_at = [f"127.0.0.1:{port}" for port in ports[shape.shards :]]
        self.nodes = [
            part(
                f"node-{at}", "streamlearn", "serve", app, "--name", f"node-{at}", "--listen", one, "--http", "none"
            )
            for at, one in enumerate(nodes_at)
        ]  # fmt: skip
        asked = invented(self.folder.app.features, np.full(1, _CANDIDATES), _VALUES, np.random.default_rng(1))
        (message,) = asked.messages(self.folder.app.features, self.folder.app.name)
        for node in self.nodes:
            node.wait_said(" is served at grpc ", _READY_S_MAX)
        self.answers = [Answers(one, message) for one in nodes_at]
        for asker in self.answers:
            ends.callback(asker.close)
        self._note(f"{len(self.shards)} shards, {len(self.nodes)} nodes, ingest and the trainer run")
