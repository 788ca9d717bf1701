"""The demo's model: trained from samples as they come, on two shards, published, followed, and taken back.

One shard is killed on the way: training goes on by itself, and each label is learned once all the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from streamlearn.cli.demo_nodes import DemoNodes
from streamlearn.errors import StreamlearnError
from streamlearn.trainer import Trainer, TrainReport, train
from streamlearn.versions import Chain, open_store
from streamlearn.versions import History as Versions

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.cli.demo_shards import DemoShards
    from streamlearn.replay import History

__all__ = ["DemoModel"]

_FOLLOW_S_MAX = 60.0
_LOOK_S = 0.01
# A shard is killed when so many samples were learned.
_KILL_ROWS = 20_000


class DemoModel:
    """A model that is trained in a thread of its own; nodes answer requests with its versions.

    Args:
        folder: The application, with shards and store in its settings.
        shards: Where its tables are.
        history: What its nodes are asked for.
    """

    def __init__(self, folder: AppFolder, shards: DemoShards, history: History) -> None:
        self._folder, self._shards, self._url = folder, shards, folder.store_url
        self._ends, self._stop = ExitStack(), threading.Event()
        self._trainer: Trainer | None = None
        self._report: TrainReport | None = None
        self._error: BaseException | None = None
        self._killed_s: float | None = None
        self._back_s: float | None = None
        self._history = Versions(open_store(self._url), folder.app.name)
        self._thread = threading.Thread(target=self._train, name="demo-trainer", daemon=True)
        self._thread.start()
        self._wait(lambda: self._trainer is not None and self._trainer.publisher.committed is not None, "version 1")
        self._nodes = self._ends.enter_context(closing(DemoNodes(folder, history)))

    def live(self) -> dict[str, float]:
        """How far training is.

        Raises:
            StreamlearnError: It failed.
        """
        if self._error is not None:
            raise self._error
        trainer = self._trainer
        if trainer is None:
            return {}
        committed, auc = trainer.publisher.committed, trainer.summary.get("auc")
        return {
            "learned": round(trainer.counted["samples"]),
            "messages behind": trainer.lag,
            "version": 0 if committed is None else committed.version,
            **({} if auc is None else {"AUC": auc}),
        }

    def finish(self) -> None:
        """Learn what is left of the samples, publish it, and wait until all nodes answer with it."""
        with self._folder.open_topic("samples") as topic, topic.reader() as reader:
            ends = [reader.end(partition) for partition in range(topic.partitions)]
        self._wait(lambda: self._has_reached(ends), "all samples to be learned", _FOLLOW_S_MAX * 10)
        self._stop.set()
        self._thread.join()
        self.live()
        assert self._report is not None
        self._wait_for(self._report.version)

    @property
    def learned(self) -> dict[str, int]:
        """What the newest version says all of its history learned, each row and label once."""
        metrics = Chain.find(open_store(self._url), self._folder.app.name).manifest.metrics
        return {name: round(metrics[name]) for name in ("samples", "labels_learned", "labels_corrected")}

    def facts(self) -> dict[str, Any]:
        """What was learned, how well, what versions cost, how fast one is taken back, and what a killed shard cost."""
        assert self._report is not None
        report, known = self._report, self._history.read()
        facts = {
            f"{name}": round(value, 4) for name, value in report.summary.items() if name.endswith((".auc", ".log_loss"))
        }
        if self._back_s is not None and self._killed_s is not None:
            facts["training went on after a killed shard, s"] = round(self._back_s - self._killed_s, 2)
        return {
            **facts,
            "times all shards were restored": report.recoveries,
            "versions published": len(known),
            "versions that passed the judge": sum(one.outcome == "passed" for one in known),
            "bytes of versions": sum(one.bytes for one in known),
            **self._rolled_back(),
            **self._nodes.facts(),
        }

    def close(self) -> None:
        """End training, and let go of nodes and registry."""
        self._stop.set()
        self._thread.join()
        self._ends.close()

    def _train(self) -> None:
        try:
            self._report = train(self._folder, self._stop, show=self._shown)
        # Whoever looks at the demo is told; a thread has nobody else to tell.
        except BaseException as error:
            self._error = error

    def _shown(self, trainer: Trainer) -> None:
        """Between two steps: kill a shard once, and see when training is as far as it was."""
        self._trainer = trainer
        learned = trainer.counted["samples"]
        if self._killed_s is None and learned >= _KILL_ROWS:
            self._killed_s = time.monotonic()
            self._shards.kill(1)
            self._shards.start_again(1)
        elif self._killed_s is not None and self._back_s is None and trainer.recoveries:
            self._back_s = time.monotonic()

    def _has_reached(self, ends: list[int]) -> bool:
        self.live()
        reached = None if self._trainer is None else self._trainer.reached
        return reached is not None and all(at >= end for at, end in zip(reached.offsets, ends, strict=True))

    def _wait_for(self, version: int) -> None:
        def is_there() -> bool:
            return set(self._nodes.ask()) == {version}

        self._wait(is_there, f"all nodes to answer with version {version}")

    def _rolled_back(self) -> dict[str, Any]:
        """Take the newest version back, as an operator does; every node answers with the one before it."""
        begin = time.perf_counter()
        done = self._verb("rollback", "--steps", "1", "--reason", "the demo does not like it")
        whole_ms = (time.perf_counter() - begin) * 1e3
        answers = self._nodes.ask()
        facts = {f"version {done['active']} back on {one['node']}, ms": round(one["ms"], 1) for one in done["acted"]}
        if len(facts) != self._nodes.count or set(answers) != {done["active"]}:
            message = (
                f"{len(facts)} of {self._nodes.count} nodes followed, {answers} were answered after a rollback: {done}"
            )
            raise StreamlearnError(message, help="this is a defect: please report it with this output")
        return {**facts, "the whole rollback command, ms": round(whole_ms)}

    def _verb(self, verb: str, *words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "streamlearn", verb, self._folder.app.name, *words, "--json"]
        where = ["--store", self._url, "--registry", self._folder.registry_url]
        done = subprocess.run([*command, *where], stdout=subprocess.PIPE, check=True, timeout=_FOLLOW_S_MAX)
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def _wait(self, is_so: Callable[[], bool], what: str, wait_s: float = _FOLLOW_S_MAX) -> None:
        until = time.monotonic() + wait_s
        while not is_so():
            if self._error is not None:
                raise self._error
            if time.monotonic() > until:
                message = f"waited {wait_s:.0f} s for {what}"
                raise StreamlearnError(message, help="this is a defect: please report it with this output")
            time.sleep(_LOOK_S)
