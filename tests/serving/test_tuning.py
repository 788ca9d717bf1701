"""Ladders from sizes: they cost no more than those there are, within a bound, and are said as settings."""

from __future__ import annotations

import json
import socketserver
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from streamlearn.cli.main import cli
from streamlearn.errors import BadRecord, ServiceError, StreamlearnError, UsageError
from streamlearn.serving.graphs.ladder_tuner import tune, uncosted
from streamlearn.serving.sizes import Formed, Rows, Sizes, lognormal, node_sizes, read_sizes, summed
from streamlearn.settings import ServingSettings
from streamlearn.testing import wait_until
from tests.serving.test_front import Rig, request
from tests.trainer.processes import write_app

WASTE_MAX = 0.15

_Histograms = st.lists(st.tuples(st.integers(1, 64), st.integers(1, 1000)), min_size=1, max_size=20)


def sizes_of(*formed: Formed, users: tuple[int, ...] = (1, 8), candidates: tuple[int, ...] = (16, 64)) -> Sizes:
    """Sizes where a user costs 2 and an execution of candidates 50 and 10 for each, of any length times as much."""
    lengths = [one.length for one in formed]
    return Sizes(
        users_buckets=list(users),
        candidates_buckets=list(candidates),
        lengths=lengths,
        user_us=[[10.0 + 2 * size for size in users] for _ in lengths],
        score_us=[[(50.0 + 10 * size) * (at + 1) for size in candidates] for at in range(len(lengths))],
        formed=list(formed),
        requests={"candidates": [], "histories": []},
        user_rows=Rows(0, 0),
        score_rows=Rows(0, 0),
    )


def test_a_ladder_for_the_lognormal_mix_pads_little_within_few_executables() -> None:
    requests = lognormal(36, 0.8, 4096)
    assert sum(size * count for size, count in requests) / 1e7 == pytest.approx(36, rel=0.01)
    tuned = tune(uncosted(requests, ServingSettings(), None), 16)
    present, proposed = tuned.candidates
    assert present.buckets == tuple(ServingSettings().candidates_buckets)
    assert proposed.padding_waste <= WASTE_MAX < present.padding_waste
    assert proposed.cost_us < present.cost_us
    assert tuned.executables <= 16
    assert proposed.buckets[-1] == present.buckets[-1]


@given(_Histograms, _Histograms, st.integers(2, 12))
def test_what_is_proposed_is_a_ladder_within_the_bound_that_costs_no_more(
    users: list[tuple[int, int]], candidates: list[tuple[int, int]], buckets: int
) -> None:
    few = [(1 + size % 8, count) for size, count in users]
    formed = [Formed(4, few, candidates), Formed(9, few, users)]
    tuned = tune(sizes_of(*formed), 2 * buckets)
    assert tuned.executables <= 2 * buckets
    assert tuned.batches == sum(count for _, count in [*candidates, *users])
    for (_, proposed), top in ((tuned.users, 8), (tuned.candidates, 64)):
        assert proposed.buckets[-1] == top
        assert list(proposed.buckets) == sorted(set(proposed.buckets))
    before, after = (tuned.users[at].cost_us + tuned.candidates[at].cost_us for at in (0, 1))
    if buckets >= 4:  # as many as there are
        assert after <= before * (1 + 1e-9)


def test_more_executables_never_cost_more() -> None:
    formed = Formed(1, [(1, 5), (3, 2)], lognormal(20, 0.7, 64))
    tuned = [tune(sizes_of(formed), most) for most in range(2, 20)]
    costs = [one.users[1].cost_us + one.candidates[1].cost_us for one in tuned]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]


def test_what_nothing_can_be_chosen_from_is_refused() -> None:
    formed = Formed(1, [(1, 5)], [(3, 5)])
    with pytest.raises(UsageError, match="no TensorBatch has been formed yet"):
        tune(sizes_of(Formed(1, [], [])), 16)
    with pytest.raises(UsageError, match="1 executables"):
        tune(sizes_of(formed), 1)
    for mean, sigma in ((0.5, 1.0), (36.0, 0.0), (float("nan"), 1.0)):
        with pytest.raises(UsageError, match="lognormal"):
            lognormal(mean, sigma, 10)


def test_sizes_of_several_nodes_are_added_and_their_costs_averaged(tmp_path: Path) -> None:
    one = sizes_of(Formed(1, [(1, 5)], [(3, 5), (7, 1)]))
    other = msgspec.structs.replace(one, score_us=[[410.0, 890.0]], formed=[Formed(1, [(1, 2), (2, 3)], [(3, 5)])])
    both = summed([one, other])
    assert both.formed == [Formed(1, [(1, 7), (2, 3)], [(3, 10), (7, 1)])]
    assert both.score_us == [[310.0, 790.0]]
    with pytest.raises(UsageError, match="candidates_buckets differs between nodes"):
        summed([one, sizes_of(Formed(1, [], []), candidates=(8, 64))])
    saved = tmp_path / "sizes.json"
    saved.write_bytes(msgspec.json.encode(both))
    assert read_sizes(saved) == both
    saved.write_text('{"users_buckets": 3}')
    with pytest.raises(BadRecord, match="holds no sizes"):
        read_sizes(saved)
    with pytest.raises(UsageError, match="cannot be read"):
        read_sizes(tmp_path / "none")


def test_a_node_that_is_not_there_is_told() -> None:
    with pytest.raises(ServiceError, match="did not answer"):
        node_sizes("127.0.0.1:1")


@contextmanager
def node_that_answers(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """The address of a node that gives every connection the same bytes, and the requests that it received."""
    requests: list[bytes] = []

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            requests.append(self.request.recv(4_096))
            self.request.sendall(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", requests
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.6\r\n", b"", b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000])
def test_what_does_not_speak_http_is_told(answer: bytes) -> None:
    with node_that_answers(answer) as (address, _), pytest.raises(ServiceError, match="did not answer") as caught:
        node_sizes(address)
    assert "front.http" in caught.value.help


@pytest.mark.parametrize("address", ["127.0.0.1:http", "127.0.0.1:80/a b", "http://[::1", "http://"])
def test_an_address_that_cannot_be_asked_is_told(address: str) -> None:
    with pytest.raises(ServiceError, match="did not answer"):
        node_sizes(address)


@pytest.mark.parametrize("address", ["http://ada:hunter2@127.0.0.1:1", "ada:hunter2@127.0.0.1", "https://hunter2@n:1"])
def test_a_password_in_an_address_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(UsageError, match="names a user") as caught:
        node_sizes(address)
    assert "hunter2" not in f"{caught.value.message}{caught.value.help}"
    assert "--token-file" in caught.value.help


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_error_so_that_no_other_host_gets_the_token(status: int) -> None:
    with node_that_answers(b"") as (other, requests):
        answer = f"HTTP/1.1 {status} Moved\r\nLocation: http://{other}/sizes\r\nContent-Length: 0\r\n\r\n"
        with node_that_answers(answer.encode()) as (address, _), pytest.raises(ServiceError, match=str(status)):
            node_sizes(address, "secret")
    assert requests == []


@pytest.mark.parametrize("verb", [("serve",), ("serve", "tune")])
def test_a_token_that_is_not_ascii_is_told(verb: tuple[str, ...], tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", {}, model="deepfm")
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    done = CliRunner().invoke(cli, [*verb, str(app.folder), "--token-file", str(tmp_path / "token")])
    assert isinstance(done.exception, UsageError), done.exception
    assert "ASCII" in done.exception.message
    assert done.exception.help


def test_the_verb_asks_a_node_what_it_formed_and_says_settings(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", {}, model="deepfm")
    rig = Rig()
    rig.front.activate(rig.handles[1])
    try:
        for items in (3, 5, 5, 7, 15):
            assert rig.ask("/score", request(items))[0] == 200
        wait_until(lambda: rig.front.waiting() == 0, "answers")
        saved = tmp_path / "sizes.json"
        assert rig.node.http is not None
        words = ["serve", "tune", str(app.folder), rig.node.http, "--executables", "6", "--save", str(saved)]
        done = CliRunner().invoke(cli, [*words, "--json"])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert found["batches"] == 5
        assert found["serving"]["candidates_buckets"][-1] == 16
        assert found["padding_waste_so_far"] == round(1 - 35 / (4 + 4 * 16), 4)
        assert len(found["ladders"]) == 4
        assert len(read_sizes(saved).formed[0].candidates) == 4
    finally:
        rig.close()
    plain = CliRunner().invoke(cli, ["serve", "tune", str(app.folder), "--file", str(saved)])
    assert plain.exit_code == 0, plain.output
    said = tomllib.loads(plain.stdout[plain.stdout.index("[serving]") :])
    assert msgspec.convert(said["serving"], ServingSettings).candidates_buckets[-1] == 16


def test_the_verb_needs_sizes_and_a_bound_that_can_be_kept(tmp_path: Path) -> None:
    app = str(write_app(tmp_path / "app", {}, model="deepfm").folder)
    for words, said in (
        ([], "the sizes of requests are missing"),
        (["--lognormal", "36"], "not MEAN,SIGMA"),
        (["--lognormal", "36,0.8", "--executables", "1000"], "above serving.compiles_max"),
    ):
        done = CliRunner().invoke(cli, ["serve", "tune", app, *words])
        assert isinstance(done.exception, StreamlearnError), done.output
        assert said in done.exception.message
    done = CliRunner().invoke(cli, ["serve", "tune", app, "--lognormal", "36,0.8"])
    assert done.exit_code == 0
    assert "candidates_buckets = [" in done.stdout


def test_an_application_and_the_verbs_beside_serving_are_told_apart(tmp_path: Path) -> None:
    missing = CliRunner().invoke(cli, ["serve", str(tmp_path / "nowhere")])
    assert isinstance(missing.exception, StreamlearnError)
    assert "nowhere" in missing.exception.message
    assert "--listen" in CliRunner().invoke(cli, ["serve", "--help"]).stdout
    assert "--lognormal" in CliRunner().invoke(cli, ["serve", "tune", "--help"]).stdout
