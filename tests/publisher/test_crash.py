"""A trainer that is killed while it publishes, at every write and between all stages: the next one loses nothing."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from streamlearn.ps import PsClient
from streamlearn.testing import wait_until
from streamlearn.versions import History, open_store
from tests.campaign import every
from tests.processes import started
from tests.publisher.crashes import SETTINGS, STAGES, check_store, run_dying_shard, run_shard, run_trainer
from tests.publisher.training import MODEL, OPTIONS, Training

_WAIT_S_MAX = 300.0


def test_a_publisher_killed_at_any_write_loses_nothing_and_promotes_nothing_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.publisher.crashes", str(tmp_path), "0", "1000", str(every(2))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    ends = [tuple(one) for one in json.loads(done.stdout)]
    # A file is written, linked and unlinked: of two files that follow each other all three are tried. In a campaign
    # it is every write of a run, from its fence on. In the end the last trainer found nothing left to die at.
    assert ends[0] == (signal.SIGKILL, 0, 0)
    assert ends[-1] == (0, 2, 2)
    assert {one[0] for one in ends[:-1]} == {signal.SIGKILL}
    # What is committed and promoted stays so, and is never more than one apart.
    assert all(earlier[1:] <= later[1:] for earlier, later in pairwise(ends))
    # No end was missed: before each commit, between it and the move, and after.
    assert {end[1:] for end in ends} == {(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)}


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[list[str]]:
    """The addresses of two shards, processes of their own, of one store."""
    ports = [_free_port() for _ in range(2)]
    processes = [started(run_shard, f"{at}/2", port, str(tmp_path / "store")) for at, port in enumerate(ports)]
    yield [f"127.0.0.1:{port}" for port in ports]
    for process in processes:
        process.kill()
        process.join(_WAIT_S_MAX)
        process.close()


@pytest.mark.parametrize("stage", STAGES)
def test_a_trainer_killed_between_stages_beside_living_shards_is_followed_by_one_that_loses_nothing(
    stage: str, shards: list[str], tmp_path: Path
) -> None:
    store, done = str(tmp_path / "store"), tmp_path / "done"
    first = started(run_trainer, shards, store, stage, str(done))
    first.join(_WAIT_S_MAX)
    assert first.exitcode == -signal.SIGKILL
    assert not done.exists()
    second = started(run_trainer, shards, store, "", str(done))
    second.join(_WAIT_S_MAX)
    wait_until(done.exists, "the second trainer to end")
    check_store(open_store(store))


def test_a_shard_killed_in_the_midst_of_an_export_is_followed_by_one_that_loses_nothing(tmp_path: Path) -> None:
    url, trap, ports = str(tmp_path / "store"), tmp_path / "trap", [_free_port() for _ in range(2)]
    shards = [
        started(run_shard, "0/2", ports[0], url),
        started(run_dying_shard, "1/2", ports[1], url, str(trap)),
    ]
    store = open_store(url)
    settings = msgspec.structs.replace(SETTINGS, addresses=[f"127.0.0.1:{port}" for port in ports])
    client = PsClient.connect(MODEL, OPTIONS, settings)
    abandon = client.abandon

    def give_up_soon(version: int) -> None:
        """Nobody is there to hear it, and all else has time: the machine may stand still."""
        client._settings = msgspec.structs.replace(settings, order_wait_s_max=5.0)
        try:
            abandon(version)
        finally:
            client._settings = settings

    client.abandon = give_up_soon  # type: ignore[method-assign]
    with Training(store, client=client).begin() as training:
        training.publish(2)
        trap.touch()
        training.step()
        training.tick()  # the cut fails, and nothing of it is a version
        shards[1].join(_WAIT_S_MAX)
        assert shards[1].exitcode == -signal.SIGKILL
        assert [one.version for one in History(store, MODEL).read()] == [1, 2]
        shards.append(started(run_shard, "1/2", ports[1], url))
        training.recover()
        assert training.steps == 2
        training.publish(2)
    check_store(store)
    for process in shards:
        process.kill()
        process.join(_WAIT_S_MAX)
        process.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
