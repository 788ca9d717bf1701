"""The console's API, by real HTTP: what it tells, who may move the pointer, and what is refused."""

from __future__ import annotations

import socket
import socketserver
import ssl
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme

from streamlearn.console import ConsoleServer
from streamlearn.console.guard import Guard
from streamlearn.errors import RegistryUnreachable, ServiceError
from streamlearn.settings import Settings
from streamlearn.settings.console import ConsoleSettings
from streamlearn.testing import wait_until
from streamlearn.versions import PointerLog, Replica, Requests
from streamlearn.versions.pointer.facts import pointer_facts
from streamlearn.versions.pointer.model import Model
from streamlearn.versions.pointer.moves import rollback
from streamlearn.versions.pointer.registry_sqlite import SqliteRegistry
from tests.console.asked import TOKEN, Asked
from tests.console.conftest import Console, Opener
from tests.versions.history import MODEL

DEADLINE_S = 300.0


def test_the_state_is_what_store_and_registry_say(still: Console, still_nodes: list[Replica]) -> None:
    told = wait_until(
        lambda: (found := still.ask.state()) and found["state"]["headline"]["said"].endswith("all 2 nodes") and found,
        "both nodes answer with version 5",
        DEADLINE_S,
    )
    state = told["state"]
    assert (told["may_move"], told["error"]) == (True, "")
    assert [one["version"] for one in state["versions"]] == [1, 2, 4, 5]
    log = PointerLog(still.place.store, MODEL)
    assert state["pointer"] | {"accepted": 0} == pointer_facts(still.place.pointer, [], log.read) | {"accepted": 0}
    assert [(one["name"], one["active"], one["state"]) for one in state["nodes"]] == [
        ("node-1", 5, "ready"), ("node-2", 5, "ready"),
    ]  # fmt: skip
    assert [one["what"] for one in state["moves"]] == ["promote"] * 4
    assert state["figures"] == ["auc", "rows", "bytes"]


def test_a_rollback_says_of_each_node_how_long_it_took(console: Console, nodes: list[Replica]) -> None:
    told = console.ask.move("rollback", {"to": 4, "reason": "clicks fell", "by": "anna"})
    assert told.status == 200, told
    done = told.json
    assert (done["active"], done["held"], done["tainted"], done["is_whole"]) == (4, True, [5], True)
    assert sorted(one["node"] for one in done["acted"]) == ["node-1", "node-2"]
    assert all(0 < one["ms"] < DEADLINE_S * 1e3 for one in done["acted"])
    pointer = console.place.pointer
    assert (pointer.active is not None and pointer.active.version, pointer.held) == (4, True)
    assert (pointer.by, pointer.reason) == ("anna (console)", "clicks fell")
    assert [note.what for note in console.place.registry.notes(1)] == ["rollback"]
    newest = console.ask.state()["state"]["moves"][0]
    assert (newest["what"], newest["by"]) == ("rollback", "anna (console)"), "the page sees it at once"


def test_hold_release_and_promote_do_as_the_decisions_do(open_console: Opener) -> None:
    console = open_console(move_wait_s=0.1)  # there are no nodes to wait for
    held = console.ask.move("hold", {})
    assert (held.status, held.json["active"], held.json["held"], held.json["taints"]) == (200, 5, True, [])
    again = console.ask.move("hold", {})
    assert (again.status, again.json["error"]) == (409, "the pointer is held already, at 5")
    freed = console.ask.move("release", {"reason": "all is well"})
    assert (freed.status, freed.json["held"], freed.json["by"]) == (200, False, "console")
    console.ask.move("rollback", {"steps": 1})
    refused = console.ask.move("release", {})
    assert refused.status == 409
    assert "rewind" in refused.json["help"]
    assert console.ask.move("promote", {"version": 5}).status == 409
    accepted = console.ask.move("promote", {"version": 5, "accept": True})
    assert (accepted.status, accepted.json["active"], accepted.json["held"]) == (200, 5, True)


def test_a_rewind_asks_training_in_the_words_of_the_command(console: Console) -> None:
    asked = {"to": 4, "skip": ["2026-11-20T12:20..2026-11-20T12:25"], "reason": "prices were wrong", "by": "anna"}
    told = console.ask.move("rewind", asked)
    assert told.status == 200, told
    assert told.json["lines"] == [
        "request 1: training of ctr goes back to version 4 at its next cut",
        "skipped: impressions of 2026-11-20T12:20:00+00:00..2026-11-20T12:25:00+00:00",
    ]
    (request,) = Requests(console.place.store, MODEL).waiting(console.place.known)
    assert (request.to.version, request.by, request.reason) == (4, "anna (console)", "prices were wrong")
    assert console.place.pointer.seq == 4, "the pointer stays"
    assert console.ask.move("rewind", {"to": 4}, token=None).status == 401
    PointerLog(console.place.store, MODEL).move(partial(rollback, known=console.place.known, to=4), by="test")
    tainted = console.ask.move("rewind", {"to": 5})
    assert (tainted.status, "version 5 of 'ctr' is tainted" in tainted.json["error"]) == (409, True)


@pytest.mark.parametrize(
    ("what", "asked", "status"),
    [
        pytest.param("rollback", {}, 400, id="neither"),
        pytest.param("rollback", {"to": 4, "steps": 1}, 400, id="both"),
        pytest.param("rollback", {"to": "4"}, 400, id="a word"),
        pytest.param("rollback", {"to": 0}, 400, id="none"),
        pytest.param("rollback", {"to": 4, "tp": 3}, 400, id="a field that is none"),
        pytest.param("rollback", {"to": 4, "by": "x" * 101}, 400, id="a long name"),
        pytest.param("rollback", [4], 400, id="a list"),
        pytest.param("rollback", {"to": 3}, 409, id="no such version"),
        pytest.param("rollback", {"to": 9}, 409, id="a version to come"),
        pytest.param("promote", {"accept": True}, 400, id="no version"),
        pytest.param("rewind", {"to": 3}, 400, id="a rewind to no version"),
        pytest.param("rewind", {"to": 4, "skip": ["12:20.."]}, 400, id="half a range"),
        pytest.param("rewind", {"to": 4, "skip": ["12:20..12:20"]}, 400, id="an empty range"),
    ],
)
def test_a_move_that_cannot_be_is_refused_and_moves_nothing(still: Console, what: str, asked: Any, status: int) -> None:
    told = still.ask.move(what, asked)
    assert told.status == status, told
    assert told.json["error"]
    assert told.json["help"]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="none"),
        pytest.param({"Authorization": "Bearer another"}, id="another"),
        pytest.param({"Authorization": f"Bearer {TOKEN.decode()}x"}, id="longer"),
        pytest.param({"Authorization": f"Basic {TOKEN.decode()}"}, id="another scheme"),
        pytest.param({"Authorization": TOKEN.decode()}, id="no scheme"),
        pytest.param({"Cookie": f"token={TOKEN.decode()}"}, id="a cookie"),
    ],
)
def test_a_move_without_the_token_is_refused(still: Console, headers: dict[str, str]) -> None:
    told = still.ask.move("rollback", {"to": 4}, token=None, headers=headers)
    assert told.status == 401
    assert told.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in told.body


def test_a_token_in_the_url_opens_nothing(still: Console) -> None:
    given = {"Content-Type": "application/json"}
    told = still.ask("POST", f"/api/rollback?token={TOKEN.decode()}", b'{"to": 4}', given)
    assert told.status == 401


def test_without_a_token_of_its_own_a_console_is_read_only(open_still: Opener) -> None:
    console = open_still(token=None)
    assert console.ask.state()["may_move"] is False
    told = console.ask.move("rollback", {"to": 4})
    assert (told.status, told.json["error"]) == (
        403,
        "this console is read-only, because it was started without a token",
    )
    assert "--token-file" in told.json["help"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Content-Type": "text/plain"}, 415, id="a form's type"),
        pytest.param({"Origin": "https://elsewhere.example"}, 403, id="another site"),
        pytest.param({"Host": "elsewhere.example"}, 421, id="another name"),
    ],
)
def test_no_page_of_another_site_moves_the_pointer(still: Console, headers: dict[str, str], status: int) -> None:
    assert still.ask.move("rollback", {"to": 4}, headers=headers).status == status


def test_the_consoles_own_page_may(console: Console) -> None:
    own = f"http://{console.server.address}"
    assert console.ask.move("rollback", {"to": 4}, headers={"Origin": own}).status == 200


# They begin as a loopback address does.
_NEARLY = [
    "[::1]evil.example",
    "[::1]:evil",
    "[::1",
    "::1]",
    "127.0.0.1:evil.example",
    "localhost:80:80",
    "[]",
    "[]:80",
]


@pytest.mark.parametrize(
    "host", ["elsewhere.example", "10.0.0.7:8002", "localhost.example", "", "127.0.0.1.example", *_NEARLY]
)
def test_a_name_of_somebody_else_that_leads_here_sees_nothing(still: Console, host: str) -> None:
    assert still.ask("GET", "/api/state", headers={"Host": host}).status == 421
    assert still.ask("GET", "/", headers={"Host": host}).status == 421


@pytest.mark.parametrize("hosts", [("evil.example", "localhost"), ("localhost", "evil.example"), ("localhost",) * 2])
def test_a_request_with_two_hosts_is_refused(still: Console, hosts: tuple[str, str]) -> None:
    head = "GET /api/state HTTP/1.1\r\n" + "".join(f"Host: {host}\r\n" for host in hosts)
    assert still.ask.raw(f"{head}\r\n".encode()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("host", ["localhost:8002", "127.0.0.1", "[::1]:9", "LOCALHOST"])
def test_a_tunnel_to_this_machine_is_let_in(still: Console, host: str) -> None:
    assert still.ask("GET", "/api/state", headers={"Host": host}).status == 200


def test_where_other_machines_reach_it_looking_needs_the_token_too() -> None:
    guard = Guard(TOKEN, is_loopback=False)
    assert guard.refuse_visit({"host": "console.example"}) is None
    refused = guard.refuse_look({})
    assert refused is not None
    assert refused.status == 401
    assert guard.refuse_look({"authorization": f"bearer {TOKEN.decode()}"}) is None
    assert TOKEN.decode() not in repr(guard)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/rollback", 405),
        ("POST", "/api/state", 405),
        ("POST", "/", 405),
        ("DELETE", "/api/release", 405),
        ("BREW", "/api/state", 405),
        ("GET", "/api", 404),
        ("GET", "/rollback", 404),
        ("GET", "/api/versions/", 404),
        ("GET", "/api/versions/1x", 404),
        ("GET", "/api/versions/3", 404),
        ("GET", "/../settings/console.py", 404),
        ("GET", "/page/index.html", 404),
        ("GET", "/%2e%2e/server.py", 404),
        ("GET", "/__init__.py", 404),
    ],
)
def test_what_is_not_there_or_not_so_asked_for_is_refused(still: Console, method: str, path: str, status: int) -> None:
    told = still.ask(method, path)
    assert told.status == status
    assert told.json["error"]
    assert ("allow" in told.headers) == (status == 405)


def test_a_version_is_told_with_its_verdict_and_its_files(still: Console) -> None:
    found = still.ask("GET", "/api/versions/4").json
    assert found["verdict"]["outcome"] == "passed"
    assert {one["kind"] for one in found["files"]} >= {"rows", "dense"}
    assert found["positions"][0]["offset"] == 4
    assert len(found["sha256"]) == 64


def test_a_body_too_large_is_refused_before_it_is_read(open_still: Opener) -> None:
    console = open_still(body_bytes_max=256)
    told = console.ask.move("rollback", {"to": 4, "reason": "x" * 300})
    assert (told.status, console.place.pointer.seq) == (413, 4)
    head = f"POST /api/rollback HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN.decode()}\r\n"
    head += "Content-Type: application/json\r\n"
    stated = console.ask.raw(f"{head}Content-Length: 99999999999\r\n\r\n".encode())
    assert stated.startswith(b"HTTP/1.1 413 "), "by what its head says alone"
    assert console.ask.raw(f"{head}\r\n".encode()).startswith(b"HTTP/1.1 411 ")
    assert console.ask.raw(f"{head}Content-Length: -1\r\n\r\n".encode()).startswith(b"HTTP/1.1 411 ")
    chunked = console.ask.raw(f"{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode())
    assert chunked.startswith(b"HTTP/1.1 411 ")
    short = console.ask.raw(f"{head}Content-Length: 20\r\n\r\n{{}}".encode())
    assert short.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET /" + b"a" * 2_000 + b" HTTP/1.1\r\n\r\n", id="a long path"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"a" * 2_000 + b"\r\n\r\n", id="a long header"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 400 + b"\r\n", id="many headers"),
    ],
)
def test_a_head_too_large_is_refused(open_still: Opener, head: bytes) -> None:
    console = open_still(header_bytes_max=1_024)
    assert console.ask.raw(head).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "data", [b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x00\xa5\x01\r\n\r\n", b""]
)
def test_what_is_no_http_harms_nothing(still: Console, data: bytes) -> None:
    assert not still.ask.raw(data).startswith(b"HTTP/1.1 200")
    assert still.ask("GET", "/").status == 200


def test_connections_beyond_the_bound_are_refused_and_late_ones_are_cut(open_still: Opener) -> None:
    console = open_still(connections_max=2, arrival_s=1.0)
    head = f"POST /api/hold HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN.decode()}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n"
    with ExitStack() as stack:
        held: list[socket.socket] = []

        def is_refused() -> bool:
            # On a busy machine a connection may be cut, or replaced before its head is read: then two more are tried.
            held[:] = [stack.enter_context(socket.create_connection(console.ask.place, DEADLINE_S)) for _ in range(2)]
            for link in held:
                link.sendall(head.encode())
            return _is_full(console.ask)

        wait_until(is_refused, "one more is refused", DEADLINE_S)
        for link in held:
            with suppress(ConnectionError):
                while link.recv(1_000):
                    """Whoever says no more is cut off."""
        wait_until(lambda: not _is_full(console.ask), "others are let in again", DEADLINE_S)


def test_connections_that_get_no_thread_take_no_place(open_still: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: object) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    console = open_still(connections_max=2)
    with monkeypatch.context() as patch:
        patch.setattr(socketserver.ThreadingMixIn, "process_request", no_thread)
        for _ in range(4):
            assert console.ask.raw(b"") == b""
    assert console.ask("GET", "/").status == 200


def _is_full(ask: Asked) -> bool:
    try:
        return ask("GET", "/").status == 503
    except OSError:
        return True


def test_silent_connections_keep_nobody_out(open_still: Opener) -> None:
    console = open_still()
    with ExitStack() as silent:
        for number in range(500):
            link = silent.enter_context(socket.create_connection(console.ask.place, timeout=DEADLINE_S))
            if number % 2:
                link.sendall(b"GET / HT")
            if number % 100 == 99:
                assert console.ask("GET", "/").status == 200, number


def test_a_drop_now_and_then_keeps_no_connection_for_ever(open_still: Opener) -> None:
    console = open_still(arrival_s=0.5)
    with socket.create_connection(console.ask.place, timeout=DEADLINE_S) as link:
        link.sendall(b"GET / HTTP/1.1\r\n")
        link.settimeout(0.1)

        def is_cut() -> bool:
            try:
                link.sendall(b"X: a\r\n")
                return link.recv(1_000) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(is_cut, "it is cut", DEADLINE_S)


def test_every_answer_says_that_nothing_else_may_be_loaded_or_framed(still: Console) -> None:
    for path in ("/", "/style.css", "/console.js", "/icon.svg", "/api/state", "/nothing"):
        told = still.ask("GET", path)
        rules = told.headers["content-security-policy"]
        assert rules.startswith("default-src 'none'; script-src 'self'; ")
        assert "unsafe" not in rules
        assert "frame-ancestors 'none'" in rules
        assert told.headers["x-content-type-options"] == "nosniff"
        assert told.headers["x-frame-options"] == "DENY"
        assert told.headers["referrer-policy"] == "no-referrer"
        assert ("no-store" in told.headers["cache-control"]) == (told.headers["content-type"] == "application/json")
        assert "Python" not in told.headers["server"]


def test_files_of_the_page_that_have_not_changed_are_not_sent_again(still: Console) -> None:
    etag = still.ask("GET", "/console.js").headers["etag"]
    again = still.ask("GET", "/console.js", headers={"If-None-Match": etag})
    assert (again.status, again.body) == (304, b"")


def test_an_answer_is_made_small_for_who_can_read_it(still: Console) -> None:
    whole = still.ask("GET", "/style.css")
    small = still.ask("GET", "/style.css", headers={"Accept-Encoding": "gzip"})
    assert small.body == whole.body
    assert int(small.headers["content-length"]) < int(whole.headers["content-length"]) / 2


def test_tls_is_spoken_where_a_certificate_is_given(open_still: Opener, tmp_path: Path) -> None:
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    own.cert_chain_pems[0].write_to_path(certificate)
    own.private_key_pem.write_to_path(key)
    console = open_still(tls=(certificate, key))
    assert console.server.url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    assert console.ask("GET", "/api/state", context=context).status == 200
    assert not console.ask.raw(b"GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP")


def test_an_address_that_is_taken_is_said(still: Console) -> None:
    settings = ConsoleSettings(listen=still.server.address)
    model = Model(MODEL, str(still.place.folder / "store"), "", Settings())
    with pytest.raises(ServiceError, match="Address already in use") as caught:
        ConsoleServer(model, settings)
    assert "console.listen" in caught.value.help


def test_a_registry_that_is_away_keeps_no_rollback_from_the_store(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        message = "the registry is away"
        raise RegistryUnreachable(message)

    for name in ("announce", "nodes", "pointer", "versions", "note"):
        monkeypatch.setattr(SqliteRegistry, name, away)
    told = console.ask.move("rollback", {"to": 4})
    assert (told.status, told.json["active"]) == (200, 4)
    assert (told.json["is_whole"], told.json["registry"]) == (False, "the registry is away")
    state = console.ask.state()["state"]
    assert state["registry"] == "the registry is away"
    assert state["pointer"]["active"] == 4
