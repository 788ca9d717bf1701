"""Jobs: applications with samples, shards in this process, and workers in threads or processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlearn.apps import AppFolder, load_app
from streamlearn.ps import Place, ShardServer, Shelf
from streamlearn.table import declared_tables
from streamlearn.testing import wait_until
from streamlearn.trainer.towers.tower_steps import TowerSteps
from streamlearn.trainer.trainer import Trainer, TrainReport
from streamlearn.trainer.trainer_setup import train
from streamlearn.trainer.workers.leader import Leader
from streamlearn.trainer.workers.roster import Roster
from streamlearn.trainer.workers.setup import work
from tests.trainer.processes import APP, write_app
from tests.trainer.runs import until_end
from tests.trainer.stream import messages_of

__all__ = ["Job", "give_up_sooner", "wait_for", "worker_process"]

_ROOT = Path(__file__).parent.parent.parent.parent
_SILENT_S_MAX = 0.4  # of a worker that is stopped
_STRICT = {"order": "strict", "step_rows": 64, "rate": 0.01, "warmup_steps": 5}


class Job:
    """An application with samples, and shards of its own in this process."""

    def __init__(self, folder: Path, ends: ExitStack, *, text: str = APP, **trainer: Any) -> None:
        base = write_app(folder, {"trainer": {**_STRICT, **trainer}}, text=text)
        self.messages = messages_of(base.app, 12)
        options = declared_tables(base.app.tables, base.settings.tables)
        shelf = Shelf.of(base)
        self.shards = [
            ends.enter_context(ShardServer(Place(number, 2), options, shelf, base.settings.ps)) for number in range(2)
        ]
        self.changes = [
            f"ps.addresses={[shard.addresses[0] for shard in self.shards]}".replace("'", '"'),
            f'workers.listen=["unix:{folder}/leader.sock"]',
            "workers.slices=4",
            "workers.worker_wait_s_max=120",  # a worker on a loaded machine is not lost
            "publisher.publish_interval_s=3600.0",
        ]
        self.path = folder

    def folder(self, *changes: str) -> AppFolder:
        """The application with some settings changed."""
        return load_app(self.path, (*self.changes, *changes))

    def train(self, *changes: str, show: Callable[[Trainer], None] = lambda trainer: None) -> TrainReport:
        """Learn all there is."""
        return train(self.folder(*changes), threading.Event(), until=until_end, show=show)

    @contextmanager
    def workers(self, count: int, *changes: str) -> Iterator[list[BaseException]]:
        """Workers in threads of this process; yields what they raised."""
        stop, errors = threading.Event(), list[BaseException]()
        self.stop = stop
        address = self.folder().settings.workers.listen[0]

        def run() -> None:
            try:
                work(self.folder(*changes), address, stop)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield errors
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def wait_for(count: int) -> Callable[[Trainer], None]:
    """Wait for a number of workers before the first step, the leader among them."""
    joined = threading.Event()

    def show(trainer: Trainer) -> None:
        if not joined.is_set():
            leader = trainer._step_learner
            leader = leader.ranking if isinstance(leader, TowerSteps) else leader
            assert isinstance(leader, Leader)
            wait_until(lambda: len(leader.workers) == count, f"{count} workers")
            joined.set()

    return show


def give_up_sooner(monkeypatch: pytest.MonkeyPatch, pid: int, is_stopped: Callable[[], bool]) -> None:
    """Let a leader wait only shortly for the worker of a process, as long as that is stopped."""
    overdue = Roster.overdue

    def sooner(self: Roster, connected: Any, limits: tuple[float, float], now_s: float) -> list[str]:
        late = overdue(self, connected, limits, now_s)
        if not is_stopped():
            return late
        quick = overdue(self, connected, (_SILENT_S_MAX, limits[1]), now_s)
        return [one for one in quick if one in late or self.members[one].name.endswith(f":{pid}")]

    monkeypatch.setattr(Roster, "overdue", sooner)


@contextmanager
def worker_process(job: Job, *changes: str) -> Iterator[subprocess.Popen[str]]:
    """`streamlearn work` as a process; it is killed in the end."""
    words = [word for change in (*job.changes, *changes) for word in ("--set", change)]
    call = [sys.executable, "-m", "streamlearn", "work", str(job.path), *words]
    with (job.path / "worker.log").open("a") as log:
        process = subprocess.Popen(call, stdout=log, stderr=log, text=True, cwd=_ROOT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
