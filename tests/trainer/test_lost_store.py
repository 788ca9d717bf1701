"""A store that was lost while shards go on: it is said at once, with what to do, and not after many recoveries."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from shutil import rmtree

import msgspec
import pytest

from streamlearn.apps import AppFolder
from streamlearn.errors import CutFailed, ShardRefused, ShardUnreachable
from streamlearn.ps import Epoch, Place, PsClient, ShardServer, Shelf
from streamlearn.ps.orders import Restored
from streamlearn.table import declared_tables
from streamlearn.trainer.learning_loop import LearnedStep
from streamlearn.versions import VersionRef
from tests.trainer.runs import known_of, run, store_of
from tests.trainer.stream import learnable_folder, messages_of, outcomes, write_messages


class Shards:
    """Two shards of an application that listen in this process, and what is lost while they do."""

    def __init__(self, folder: AppFolder, stack: ExitStack) -> None:
        self.folder, self.restores, self.messages = folder, 0, messages_of(folder.app, 12)
        write_messages(folder, self.messages)
        options = declared_tables(folder.app.tables, folder.settings.tables)
        shelf = Shelf(store_of(folder), folder.app.name)
        servers = [ShardServer(Place(number, 2), options, shelf, folder.settings.ps) for number in range(2)]
        for server in servers:
            stack.callback(server.stop)
        self._options = options
        self._settings = msgspec.structs.replace(folder.settings.ps, addresses=[one.addresses[0] for one in servers])

    def client(self) -> PsClient:
        """A trainer's client; its restores are counted."""
        client = PsClient.connect(self.folder.app.name, self._options, self._settings)
        restore = client.restore

        def counted(epoch: Epoch, version: VersionRef | None) -> list[Restored]:
            self.restores += 1
            return restore(epoch, version)

        client.restore = counted  # type: ignore[method-assign]
        return client

    def lose_store(self) -> None:
        """Of all runs and versions nothing is left."""
        rmtree(self.folder.folder / "store")


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    settings = {"trainer": {"step_rows": 64}, "publisher": {"publish_interval_s": 3_600, "failures_max": 2}}
    folder = learnable_folder(tmp_path, settings)
    with ExitStack() as stack:
        yield Shards(folder, stack)


def test_a_new_run_on_shards_of_a_later_one_says_at_once_that_the_store_is_another(shards: Shards) -> None:
    for _ in range(2):
        run(shards.folder, client=shards.client())
    shards.lose_store()
    shards.restores = 0
    said = r"shard 0/2 is in epoch 2\.0, but file://.*/store has no run of 'learnable' later than this one, 1"
    with pytest.raises(ShardRefused, match=said) as refused:
        run(shards.folder, client=shards.client())
    assert "restore the contents of the store" in refused.value.help
    assert shards.restores == 1


def test_a_new_run_on_shards_of_the_same_number_begins_anew(shards: Shards) -> None:
    first = run(shards.folder, client=shards.client())
    shards.lose_store()
    again = run(shards.folder, client=shards.client())
    assert (again.run, again.recoveries) == (1, 1)
    assert again.tally.rows == first.tally.rows
    assert known_of(shards.folder, shards.messages) == outcomes(shards.messages)


def test_a_store_that_is_lost_in_the_midst_ends_training_with_what_is_missing(shards: Shards) -> None:
    run(shards.folder, client=shards.client())
    write_messages(shards.folder, messages_of(shards.folder.app, 12, seed=3))
    shards.restores = 0
    lost = threading.Event()

    def told(_: LearnedStep) -> None:
        if not lost.is_set():
            shards.lose_store()
            lost.set()

    with pytest.raises(CutFailed, match=r"2 cuts failed in a row; the last: .* its parent 2 is not in") as ended:
        run(shards.folder, client=shards.client(), on_step=told)
    assert "learns again" in ended.value.help
    assert shards.restores == 1


def test_every_restore_is_of_a_higher_epoch_also_after_one_that_failed(shards: Shards) -> None:
    client, epochs = shards.client(), list[Epoch]()
    restore = client.restore

    def failing(epoch: Epoch, version: VersionRef | None) -> list[Restored]:
        epochs.append(epoch)
        found = restore(epoch, version)
        if len(epochs) <= 3:
            message = "no shard answered in time"
            raise ShardUnreachable(message, help="a test")
        return found

    client.restore = failing  # type: ignore[method-assign]
    report = run(shards.folder, client=client)
    assert report.recoveries == 3
    assert epochs == [Epoch(1, number) for number in range(4)]
    assert known_of(shards.folder, shards.messages) == outcomes(shards.messages)
