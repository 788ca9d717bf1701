"""A leader, shards and a worker on hosts of their own, and what one of the ways between them costs.

`test_hosts` runs it in a network namespace of its own. Prints what was seen, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, cast

from msgspec import structs

from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import StreamlearnError
from streamlearn.models.tensorflow_load import load_tensorflow
from streamlearn.ps import Place, ShardServer, Shelf
from streamlearn.table import declared_tables
from streamlearn.testing import wait_until
from tests.trainer.processes import write_app
from tests.trainer.stream import messages_of, outcomes, write_messages
from tools.chaos.network import Network

_TOKEN, _LEADER_PORT, _MESSAGES, _END_S_MAX = "a-token-of-hosts", 7_100, 12, 300.0
_TRAINER = {"step_rows": 64, "rate": 0.01}
_HOSTS = ("leader", "shards", "worker")
_PATIENT_S, _HASTY_S = 120, 2.0  # for how long a leader waits for a silent worker


class Job:
    """A job on hosts. Its worker waits for `retry_ms` for whoever does not answer, its leader for a minute."""

    def __init__(self, network: Network, place: Path, ends: ExitStack, retry_ms: int, order: str) -> None:
        self.network, self._gate, self._ends, self._retry_ms = network, threading.Condition(), ends, retry_ms
        self._steps, self._allowed = 0, 0
        self._stop, self._leader = threading.Event(), cast("Any", None)
        self.report: Any = None
        self.said: list[str] = []  # by the worker
        self.error: StreamlearnError | None = None  # of the worker
        base = write_app(place / "job", {"trainer": {**_TRAINER, "order": order}})
        self.messages = messages_of(base.app, _MESSAGES)
        write_messages(base, self.messages)
        self.path, shards = base.folder, self._shards(base)
        self._changes = [
            f"ps.addresses={json.dumps(shards)}",
            f'workers.listen=["{network.addresses["leader"]}:{_LEADER_PORT}"]',
            "workers.slices=4",
            f"workers.worker_wait_s_max={_PATIENT_S}",
            "publisher.publish_interval_s=3600.0",
        ]
        self._leads = threading.Thread(target=self._train)
        self._works = threading.Thread(target=self._work, daemon=True)  # without its leader it ends after seconds
        self._leads.start()

    @property
    def folder(self) -> AppFolder:
        """The application."""
        return load_app(self.path, tuple(self._changes))

    @property
    def steps(self) -> int:
        """The steps that were learned."""
        return self._steps

    @property
    def workers(self) -> int:
        """How many processes learn."""
        return 0 if self._leader is None else len(self._leader.workers)

    def begin(self) -> None:
        """Wait until the leader listens, and let the worker join it."""
        wait_until(lambda: self._leader is not None, "the leader")
        self._works.start()
        self.wait_learns(2)

    def go(self, steps: int) -> None:
        """Let the leader learn some more steps."""
        with self._gate:
            self._allowed = self._steps + steps
            self._gate.notify_all()

    def wait_steps(self, steps: int) -> None:
        """Let the leader learn some more steps, and wait for them."""
        wanted = self._steps + steps
        self.go(steps)
        wait_until(lambda: self._steps >= wanted, "steps")

    def wait_learns(self, workers: int) -> None:
        """Wait until so many processes learn."""
        wait_until(lambda: self.workers == workers, f"{workers} processes to learn")

    def wait_for_silent(self, wait_s: float) -> None:
        """Let the leader wait for so long for a worker that says nothing."""
        self._leader._settings = structs.replace(self._leader._settings, worker_wait_s_max=wait_s)

    def wait_error(self) -> str:
        """Wait until the worker has ended, and return with which error."""
        self._works.join(_END_S_MAX)
        return "" if self.error is None else f"{type(self.error).__name__}: {self.error.message}"

    def end(self) -> None:
        """End the leader, and tell the worker to end."""
        self._stop.set()
        self.go(1_000)
        self._leads.join()

    def finish(self) -> dict[str, Any]:
        """Learn the rest, and return what is known then."""
        from tests.trainer.runs import known_of

        self.go(1_000)
        self._leads.join(_END_S_MAX)
        assert self.report is not None
        known, expected = known_of(self.folder, self.messages), outcomes(self.messages)
        return {"recoveries": self.report.recoveries, "labels": len(expected), "is_equal": known == expected}

    def _shards(self, base: AppFolder) -> list[str]:
        listen = f'ps.listen=["{self.network.addresses["shards"]}:0"]'
        folder = load_app(base.folder, (listen,))
        options = declared_tables(folder.app.tables, folder.settings.tables)
        with self.network.inside("shards"):
            servers = [
                self._ends.enter_context(
                    ShardServer(Place(number, 2), options, Shelf.of(folder), folder.settings.ps, token=_TOKEN.encode())
                )
                for number in range(2)
            ]
        return [server.addresses[0] for server in servers]

    def _work(self) -> None:
        from streamlearn.trainer.workers.setup import work

        with self.network.inside("worker"):
            folder = load_app(self.path, (*self._changes, f"ps.retry_wait_ms_max={self._retry_ms}"))
            address = folder.settings.workers.listen[0]
            try:
                work(folder, address, self._stop, token=_TOKEN.encode(), show=self.said.append)
            except StreamlearnError as error:
                self.error = error

    def _train(self) -> None:
        from streamlearn.trainer.trainer_setup import train
        from tests.trainer.runs import until_end

        with self.network.inside("leader"):
            self.report = train(
                self.folder, threading.Event(), until=until_end, token=_TOKEN.encode(), show=self._show
            )  # fmt: skip

    def _show(self, trainer: Any) -> None:
        self._leader = trainer._step_learner
        with self._gate:
            self._steps = trainer.tally.steps
            self._gate.wait_for(lambda: self._steps < self._allowed, _END_S_MAX)


@contextmanager
def job(place: Path, retry_ms: int, order: str) -> Iterator[Job]:
    """A job whose worker learns; all of it ends with the block."""
    with closing(Network(_HOSTS, place)) as network, ExitStack() as ends:
        made = Job(network, place, ends, retry_ms, order)
        try:
            made.begin()
            made.wait_steps(1)
            yield made
        finally:
            made.end()


def leader_and_worker(made: Job) -> dict[str, Any]:
    """No packet passes between the leader and the worker, for long enough that it is given up."""
    made.network.part("leader", "worker")
    made.wait_for_silent(_HASTY_S)
    made.wait_steps(2)
    alone = made.workers
    made.wait_for_silent(_PATIENT_S)
    made.network.join("leader", "worker")
    made.wait_learns(2)
    return {"alone": alone, "joined": len(made.said), **made.finish()}


def worker_and_shards(made: Job) -> dict[str, Any]:
    """No packet passes between the worker and the shards; the leader reaches both."""
    made.network.part("worker", "shards")
    made.go(2)
    error = made.wait_error()
    made.wait_learns(1)
    return {"error": error, **made.finish()}


def leader_away(made: Job) -> dict[str, Any]:
    """The host of the leader is cut off for longer than the worker waits for it."""
    made.network.cut("leader")
    error = made.wait_error()
    made.network.mend("leader")
    made.wait_for_silent(_HASTY_S)
    return {"error": error, **made.finish()}


_SCENARIOS: dict[str, tuple[Callable[[Job], dict[str, Any]], int, str]] = {
    "leader_and_worker": (leader_and_worker, 60_000, "strict"),
    "worker_and_shards": (worker_and_shards, 5_000, "strict"),
    "worker_and_shards_with_arrival": (worker_and_shards, 5_000, "arrival"),
    "leader_away": (leader_away, 5_000, "strict"),
}

if __name__ == "__main__":
    scenario, retry_ms, order = _SCENARIOS[sys.argv[1]]
    threading.Thread(target=load_tensorflow).start()  # it takes longer than all else before the leader
    with job(Path(sys.argv[2]), retry_ms, order) as running:
        seen = scenario(running)
    print(json.dumps(seen), flush=True)
    os._exit(0)  # TensorFlow takes a second to end
