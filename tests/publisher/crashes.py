"""Trainers that die: at a chosen change of files, or between two stages beside shards that live on.

Run as a program: `python -m tests.publisher.crashes FOLDER FIRST LAST [EVERY]`; prints, for each step, the signal that
a trainer died of, forked from a process of one thread, how many versions were committed, and moves made by then.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from streamlearn.errors import VersionDefect
from streamlearn.ps import Place, PsClient, ShardServer, Shelf
from streamlearn.ps import server as server_module
from streamlearn.settings import PsSettings
from streamlearn.versions import Chain, History, PointerLog, Store, open_store
from tests.dying import die_at, forked, preloaded
from tests.publisher.training import MODEL, OPTIONS, Training, check_learned

__all__ = ["SETTINGS", "STAGES", "STEPS", "check_store", "main", "run_dying_shard", "run_shard", "run_trainer"]

STEPS = 4
# Where a trainer dies beside shards that live on, and of which object and method that is the beginning or the end.
STAGES: dict[str, tuple[str, str, bool]] = {
    "before the seal": ("client", "seal", False),
    "after the seal": ("client", "seal", True),
    "after the export": ("client", "export", True),
    "before the manifest": ("fence", "check", True),
    "after the manifest": ("writing", "write", True),
    "after the commit": ("client", "commit", True),
    "after the verdict": ("following", "_judge_all", True),
    "after the move": ("following", "_promote", True),
    "after all": ("following", "follow", True),
}


def main(folder: str, first: int, last: int, every: int = 1) -> None:
    ends: list[tuple[int, int, int]] = []
    preloaded(partial(_train_again, f"{folder}/whole"))
    for step in range(first, last, every):
        url = f"{folder}/{step}"
        died = -forked(partial(_train, url, step))
        assert died >= 0, "see above"
        store = open_store(url)
        ends += [(died, len(History(store, MODEL).read()), PointerLog(store, MODEL).newest().seq)]
        assert forked(partial(_train_again, url)) == 0, f"step {step}"
        if not died:
            break  # it found nothing left to die at
    print(json.dumps(ends))


def check_store(store: Store) -> None:
    """Everything was learned once, the log is linear, all of it is judged, and no version was promoted twice."""
    check_learned(store, STEPS)
    known = History(store, MODEL).read()
    assert [one.outcome for one in known] == ["unscored"] * len(known)
    assert all(one.is_whole for one in known)
    assert [one.parent for one in known] == [None, *(one.ref for one in known[:-1])]
    log = PointerLog(store, MODEL)
    moves = [log.read(seq) for seq in log.seqs()]
    assert [one.seq for one in moves] == list(range(1, len(moves) + 1))
    served = [one.active.version for one in moves if one.active is not None]
    assert served == sorted(set(served)), served
    assert served[-1] == known[-1].version


def _train(url: str, step: int) -> None:
    die_at(step)
    with Training(open_store(url)).begin() as training:
        training.publish(STEPS // 2)


def _train_again(url: str) -> None:
    store = open_store(url)
    before = _steps(store)
    with Training(store).begin() as training:
        # Nothing that was committed is lost, and nothing else is taken for learned.
        assert training.steps == before
        if training.steps < STEPS:
            training.publish(STEPS - training.steps)
    check_store(store)


def _steps(store: Store) -> int:
    try:
        return int(Chain.find(store, MODEL).manifest.metrics["steps"])
    except VersionDefect as error:
        if error.defect != "missing":
            raise
        return 0


# -- beside shards that live on -------------------------------------------------------------------------------------


SETTINGS = PsSettings(
    retry_wait_ms_max=120_000, order_wait_s_max=120.0, export_wait_s_max=120.0, restore_wait_s_max=120.0
)


def run_shard(place: str, port: int, store: str) -> None:
    """Be a shard, until killed."""
    settings = msgspec.structs.replace(SETTINGS, listen=[f"127.0.0.1:{port}"])
    server_module._EXPORT_NICE = 0  # beside all else that runs here an export would be done when the tests are
    server = ShardServer(Place.parse(place), OPTIONS, Shelf(open_store(store), MODEL), settings)
    server._order_thread.join()


def run_dying_shard(place: str, port: int, store: str, trap: str) -> None:
    """Be a shard that is killed in the midst of the first file it writes once a trap is there."""
    original = os.write

    def write(descriptor: int, data: Any) -> int:
        if Path(trap).exists():
            original(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return original(descriptor, data)

    os.write = write
    run_shard(place, port, store)


def run_trainer(addresses: Sequence[str], url: str, stage: str, done: str) -> None:
    """Learn all steps and leave a file; or die at a stage of the last version."""
    settings = msgspec.structs.replace(SETTINGS, addresses=list(addresses))
    client = PsClient.connect(MODEL, OPTIONS, settings)
    with Training(open_store(url), client=client).begin() as training:
        while training.steps < STEPS:
            if stage and training.steps + 2 >= STEPS:
                _die_in(training, stage)
            training.publish(min(2, STEPS - training.steps))
    Path(done).write_text("done")


def _die_in(training: Training, stage: str) -> None:
    name, method, is_after = STAGES[stage]
    publisher = training.publisher
    objects = {
        "client": training.client,
        "fence": publisher._fence,
        "writing": publisher._version_files,
        "following": publisher._promoter,
    }
    original = getattr(objects[name], method)

    def dying(*args: Any, **named: Any) -> Any:
        if is_after:
            original(*args, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(objects[name], method, dying)


if __name__ == "__main__":
    main(sys.argv[1], *(int(one) for one in sys.argv[2:5]))
