"""A group of processes that sums by TensorFlow's collective: it learns what shards' sums learn, and ends as one."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from streamlearn.errors import ConfigError
from streamlearn.testing import wait_until
from streamlearn.versions import Chain, load_tensors, open_store
from tests.trainer.processes import job as process_of
from tests.trainer.processes import said
from tests.trainer.runs import known_of
from tests.trainer.stream import outcomes, write_messages
from tests.trainer.workers.jobs import Job, worker_process
from tests.trainer.workers.test_job import spoilt

_GROUP, _END_S_MAX = ("workers.reduce=nccl", "workers.members=2"), 300.0


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[[str], Job]]:
    with ExitStack() as ends:
        yield lambda name: Job(tmp_path / name, ends)


def words(job: Job, *more: str) -> list[str]:
    return [*more, *(word for change in (*job.changes, *_GROUP) for word in ("--set", change))]


def dense_of(job: Job) -> dict[str, np.ndarray]:
    chain = Chain.find(open_store(f"file://{job.path}/store"), job.folder().app.name)
    return dict(load_tensors(chain.store, chain.head, "dense"))


def reaches(source: str, address: str, wait_s: float) -> bool:
    """Whether a connection from an address of this machine is made."""
    host, _, port = address.rpartition(":")
    with socket.socket() as one:
        one.settimeout(wait_s)
        one.bind((source, 0))
        try:
            one.connect((host, int(port)))
        except TimeoutError:
            return False
    return True


def test_a_group_learns_what_the_sums_of_shards_learn_and_skips_the_same_steps(made: Callable[[str], Job]) -> None:
    by_shards, by_group = made("shards"), made("group")
    for one in (by_shards, by_group):
        write_messages(one.folder(), [*one.messages[:2], (0, spoilt(one.messages[2][1])), *one.messages[3:]])
    expected = by_shards.train()
    with worker_process(by_group, *_GROUP), process_of(
        by_group.folder(), *words(by_group, "--until-offset", "end", "--json")
    ) as trainer:  # fmt: skip
        assert trainer.wait(_END_S_MAX) == 0, said(by_group.folder())
    found = json.loads((by_group.path / "job.out").read_text())
    assert found["rows_refused"] == expected.tally.refused_rows > 0
    assert found["rows"] == expected.tally.rows
    assert known_of(by_group.folder(), by_group.messages) == known_of(by_shards.folder(), by_shards.messages)
    of_shards, of_group = dense_of(by_shards), dense_of(by_group)
    assert of_shards.keys() == of_group.keys()
    for name, weights in of_shards.items():
        np.testing.assert_allclose(of_group[name], weights, rtol=1e-4, atol=1e-6)


def test_when_a_member_is_killed_the_trainer_asks_to_be_started_again_and_a_spare_worker_takes_the_place(
    made: Callable[[str], Job],
) -> None:
    one = made("job")
    write_messages(one.folder(), one.messages[:6])
    with worker_process(one, *_GROUP) as worker, process_of(one.folder(), *words(one)) as trainer:
        wait_until(lambda: "joins at step" in said(one.folder()) or trainer.poll() is not None, "the worker")
        (address,) = re.findall(r"this one is at (\S+)", said(one.folder()))
        assert reaches("127.0.0.1", address, 60.0)
        assert not reaches("127.0.0.2", address, 0.2), "anyone can call TensorFlow"
        with worker_process(one, *_GROUP) as spare:
            worker.kill()
            write_messages(one.folder(), one.messages[6:])  # it notices with the next step
            assert trainer.wait(_END_S_MAX) == 75, said(one.folder())
            with process_of(one.folder(), *words(one, "--until-offset", "end")) as second:
                assert second.wait(_END_S_MAX) == 0, said(one.folder())
            assert spare.poll() is None
    assert known_of(one.folder(), one.messages) == outcomes(one.messages)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["workers.slices=3"], "cannot share them equally"),
        (["workers.slices=1", "workers.listen=[]"], "no worker can join"),
        (["workers.leader_learns=false"], "the trainer is a member"),
        (["workers.listen=[]"], "no worker can join"),
        (["ps.addresses=[]"], r"ps\.addresses is empty"),
        (['workers.listen=["192.0.2.1:7302"]', "ps.tls_ca=ca.pem"], "TLS is on"),
    ],
)
def test_a_group_that_cannot_be_is_refused_with_help(
    made: Callable[[str], Job], monkeypatch: pytest.MonkeyPatch, changes: list[str], message: str
) -> None:
    one = made("job")
    write_messages(one.folder(), one.messages)
    monkeypatch.setattr("streamlearn.trainer.trainer_setup._client", lambda *_: ExitStack())
    with pytest.raises(ConfigError, match=message) as caught:
        one.train(*_GROUP, *changes)
    assert caught.value.help
