"""`streamlearn bench-serve` against nodes that answer, refuse, or are not there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner, Result

from streamlearn.cli.main import cli
from streamlearn.errors import ServiceError, UsageError
from tests.serving.inference import Node, serving

APP = str(Path(__file__).parents[2] / "examples" / "synthetic")
SHORT = ("--seconds", "1", "--warmup-s", "0", "--requests-count", "20")


def _ask(address: str, *more: str) -> Result:
    return CliRunner().invoke(cli, ["bench-serve", address, "--app", APP, *SHORT, *more])


def _told(address: str, *more: str) -> dict[str, Any]:
    result = _ask(address, *more, "--json")
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def test_a_rate_is_kept_and_told(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("sesame\n")
    with serving(Node()) as node:
        told = _told(
            node.address, "--arrivals", "constant", "--rate", "50", "--token-file", str(token), "--model", "ctr"
        )
    assert (told["due"], told["ok"], told["failed"]) == (50, 50, 0)
    assert told["model"] == "ctr"
    assert told["goodput_per_s"] == 50
    assert 0 < told["latency_ms"]["p50"] <= told["latency_ms"]["p99"] <= told["latency_ms"]["max"]
    assert [one["due"] for one in told["time_line"]] == [50]
    assert len(node.asked) == 51  # one was asked before, to see whether it can be
    assert node.metadata["authorization"] == "Bearer sesame"
    request = node.asked[-1]
    assert request.model_name == "ctr"
    assert {one.name for one in request.inputs} >= {"user_id", "item_id", "topics.lengths", "taste"}


def test_people_are_told_in_a_table() -> None:
    with serving(Node()) as node:
        result = _ask(node.address, "--arrivals", "bursts", "--bursts", "3,0.1,0.5", "--rate", "30")
    assert result.exit_code == 0, result.output
    for part in ("latency p99.9", "goodput", "bursts", "own CPU of a request"):
        assert part in result.stdout


def test_callers_that_wait_are_told_as_such() -> None:
    with serving(Node()) as node:
        told = _told(node.address, "--concurrency", "2", "--deadline-ms", "120000", "--requests", "history")
    assert (told["pace"], told["concurrency"], told["requests"]) == ("closed", 2, "history")
    assert told["ok"] == told["in_time"] == told["due"] > 0


class _Door(BaseHTTPRequestHandler):
    """A node's HTTP, as far as it is asked: what was posted, by path; those for the model "away" it does not know."""

    protocol_version = "HTTP/1.1"
    posted: list[tuple[str, dict[str, Any]]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.posted.append((self.path, json.loads(body)))
        status, said = (404, b"no such model") if "away" in self.path else (200, b"{}")
        self.send_response(status)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *told: object) -> None:
        pass


@contextmanager
def _door() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    posted: list[tuple[str, dict[str, Any]]] = []
    kind = type("Door", (_Door,), {"posted": posted})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", posted
        finally:
            server.shutdown()
            thread.join()


def test_json_is_posted_where_the_address_is_one_of_http() -> None:
    with _door() as (address, posted):
        told = _told(address, "--arrivals", "constant", "--rate", "30", "--model", "ctr", "--version", "7")
        refused = _ask(f"{address}/v2/models/away/infer")
    assert (told["due"], told["ok"], told["failed"]) == (30, 30, 0)
    path, body = posted[0]
    assert path == "/v2/models/ctr/versions/7/infer"
    inputs = {one["name"]: one for one in body["inputs"]}
    assert inputs.keys() >= {"user_id", "item_id", "topics.lengths", "taste"}
    assert all(len(one["data"]) == math.prod(one["shape"]) for one in inputs.values())
    assert isinstance(refused.exception, ServiceError)
    assert "NOT_FOUND: HTTP status 404: no such model" in str(refused.exception)


def test_an_address_that_no_load_can_be_put_on_is_refused() -> None:
    for address in ("https://127.0.0.1:1", "http://", "ftp://127.0.0.1:1/x"):
        assert isinstance(_ask(address).exception, UsageError)


def test_a_search_says_what_it_tried() -> None:
    with serving(Node()) as node:
        result = _ask(node.address, "--search-goodput", "0.001", "--rate", "2", "--json")
    # No node answers in a microsecond.
    assert isinstance(result.exception, ServiceError), result.output
    assert "no rate" in str(result.exception)
    assert "requests/s for 1 s: " in result.stderr


def test_who_refuses_or_is_away_is_named() -> None:
    with serving(Node(grpc.StatusCode.INVALID_ARGUMENT)) as node:
        refused = _ask(node.address)
    assert isinstance(refused.exception, ServiceError)
    assert "INVALID_ARGUMENT: as told" in str(refused.exception)
    away = _ask("127.0.0.1:1")
    assert isinstance(away.exception, ServiceError)
    assert "127.0.0.1:1" in str(away.exception)


@pytest.mark.parametrize(
    "wrong",
    [("--concurrency", "2", "--rate", "5"), ("--bursts", "4,x"), ("--rate", "0"), ("--arrivals", "tide")],
)
def test_what_cannot_be_is_refused(wrong: tuple[str, ...]) -> None:
    with serving(Node()) as node:
        result = _ask(node.address, *wrong)
    assert result.exit_code == 2 or isinstance(result.exception, UsageError), result.output
