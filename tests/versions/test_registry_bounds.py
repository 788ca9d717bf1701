"""A Redis that trickles, answers nonsense or holds too much: every call ends in time, and the store decides."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis import Redis as Client
from redis.connection import PythonRespSerializer

from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import RegistryDefect, RegistryUnreachable
from streamlearn.settings import Settings
from streamlearn.settings.versions import RegistrySettings, VersionSettings
from streamlearn.testing import MemoryRegistry
from streamlearn.versions import Node, Pointer, Registry, Store, open_registry
from streamlearn.versions.pointer import registry as registries
from streamlearn.versions.pointer import registry_redis, registry_sqlite
from streamlearn.versions.pointer.announcer import Announcer
from streamlearn.versions.pointer.model import Model
from streamlearn.versions.pointer.moves import rollback
from streamlearn.versions.pointer.redis_call import connected
from streamlearn.versions.pointer.redis_url import RedisUrl
from tests.versions.history import MODEL
from tests.versions.nodes import FAST, World
from tests.versions.test_registry_away import CALLS, PATIENT
from tools.services import Redis

REACH_S = 0.6
# A call that takes longer is taken to hang.
WAIT_S = 60.0
SETTINGS = RegistrySettings(reach_s=REACH_S)
# A server pauses in it; nobody sets it.
PAUSE = threading.Event()
# Gets what sends bytes to the client.
Answer = Callable[[Callable[[bytes], None]], None]


def whole(data: bytes) -> Answer:
    return lambda send: send(data)


def trickle(send: Callable[[bytes], None]) -> None:
    """100 MB, a byte at a time: each comes long before a timeout."""
    send(b"$100000000\r\n")
    while True:
        send(b"x")
        PAUSE.wait(REACH_S / 6)


DEEP = whole(b"*1\r\n" * 100_000 + b":1\r\n")
NONSENSE = {
    "integer": whole(b":100000000\r\n"),
    "huge integer": whole(b":%d\r\n" % 10**30),
    "text as integer": whole(b":abc\r\n"),
    "array": whole(b"*2\r\n:1\r\n$1\r\na\r\n"),
    "deep array": DEEP,
    "array of arrays": whole(b"*1\r\n*1\r\n:1\r\n"),
    "array of nothing": whole(b"*1\r\n$-1\r\n"),
    "nothing": whole(b"$-1\r\n"),
    "no array": whole(b"*-1\r\n"),
    "negative length": whole(b"$-5\r\n"),
    "status": whole(b"+OK\r\n"),
    "junk": whole(b"\x00\xff\r\n"),
    "error in array": whole(b"*1\r\n-ERR x\r\n"),
}


class FakeRedis:
    """A server that greets as a Redis does, and gives one answer to everything else."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None, greets: bool = True) -> None:
        self._answer, self._tls, self._greets = answer, tls, greets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.sent_bytes, self._is_closed = 0, False
        scheme = "redis" if tls is None else "rediss"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._is_closed = True
        for one in (self._listener, *self._connections):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while not self._is_closed:
            with suppress(OSError):
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                thread = threading.Thread(target=self._serve, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        def send(data: bytes) -> None:
            if self._is_closed:
                raise ConnectionAbortedError
            connection.sendall(data)
            self.sent_bytes += len(data)

        with suppress(OSError):
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._connections.append(connection)
            with connection.makefile("rb") as commands:
                while line := commands.readline():
                    words = []
                    for _ in range(int(line[1:])):
                        words.append(commands.read(int(commands.readline()[1:])))
                        commands.readline()
                    if self._greets and words[0] in (b"CLIENT", b"SELECT"):
                        send(b"+OK\r\n")
                    else:
                        self._answer(send)


@contextmanager
def fake(answer: Answer, **options: object) -> Iterator[FakeRedis]:
    server = FakeRedis(answer, **options)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.close()


def in_time(server: FakeRedis, *calls: Callable[[], object]) -> list[object]:
    """What calls that are made at once give or raise, or that one of them does not end."""
    with ThreadPoolExecutor(len(calls)) as pool:
        made = [pool.submit(call) for call in calls]
        try:
            return [one.exception(WAIT_S) or one.result() for one in made]
        finally:
            # This ends calls that still read.
            server.close()


def certificate_and_key() -> bytes:
    """What a server of this machine is known by, to whom its certificate is an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redis")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    signed = made.add_extension(names, critical=False).sign(key, hashes.SHA256())
    encoding = serialization.Encoding.PEM
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return signed.public_bytes(encoding) + secret


@pytest.mark.parametrize("greets", [True, False], ids=["commands", "greeting"])
def test_every_call_to_a_redis_that_trickles_ends_in_time(greets: bool) -> None:
    with fake(trickle, greets=greets) as server, open_registry(server.url, MODEL, SETTINGS) as registry:
        began_s = time.monotonic()
        ended = in_time(server, *(lambda call=call: call(registry) for call in CALLS.values()))
        assert time.monotonic() - began_s < WAIT_S
        assert [type(one) for one in ended] == [RegistryUnreachable] * len(CALLS)
        assert all("does not answer: Timeout" in str(one) for one in ended)


def test_a_call_over_tls_to_a_redis_that_trickles_ends_in_time(tmp_path: Path) -> None:
    authority = tmp_path / "redis.pem"
    authority.write_bytes(certificate_and_key())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority)
    with (
        fake(trickle, tls=tls) as server,
        open_registry(f"{server.url}?ssl_ca_certs={authority}", MODEL, SETTINGS) as registry,
    ):
        (ended,) = in_time(server, registry.pointer)
    assert isinstance(ended, RegistryUnreachable)
    assert "does not answer: Timeout" in str(ended)


def test_a_greeting_whose_answers_are_each_in_time_does_not_add_up() -> None:
    def late(send: Callable[[bytes], None]) -> None:
        PAUSE.wait(0.7 * REACH_S)
        send(b"+OK\r\n")

    with fake(late, greets=False) as server, open_registry(f"{server.url}/1", MODEL, SETTINGS) as registry:
        (ended,) = in_time(server, registry.pointer)
    assert isinstance(ended, RegistryUnreachable)


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
def test_an_answer_of_another_kind_is_an_error_of_the_registry(answer: Answer) -> None:
    with fake(answer) as server, open_registry(server.url, MODEL, SETTINGS) as registry:
        for name, call in CALLS.items():
            if not name.startswith("wait"):
                with suppress(RegistryUnreachable):
                    call(registry)
        with suppress(RegistryUnreachable):
            registry.wait(10**9, 0.1)


@pytest.mark.parametrize("name", ["pointer", "beat", "versions"])
def test_no_more_of_an_answer_is_read_than_a_call_needs(name: str) -> None:
    def flood(send: Callable[[bytes], None]) -> None:
        send(b"$1000000000\r\n")
        for _ in range(1_000):
            send(bytes(1_000_000))

    limits = RegistrySettings(reach_s=WAIT_S)
    with fake(flood) as server, open_registry(server.url, MODEL, limits) as registry:
        with pytest.raises(RegistryDefect, match="holds too much"):
            CALLS[name](registry)
        # The kernel buffers more than the client reads.
        assert server.sent_bytes < (100 if name == "versions" else 40) * 10**6


def test_a_copy_of_the_pointer_that_is_too_large_is_named_and_a_move_replaces_it(own_redis: Redis) -> None:
    with Client.from_url(own_redis.url) as client, open_registry(own_redis.url, MODEL, PATIENT) as registry:
        client.hset(f"streamlearn:{{{MODEL}}}:pointer", mapping={"seq": "1", "data": b"{" + b"x" * (8 << 20)})
        for call in (registry.pointer, lambda: registry.wait(0, 1)):
            with pytest.raises(RegistryDefect, match="holds too much"):
                call()
        assert registry.announce(Pointer(seq=2))
        assert registry.pointer() == Pointer(seq=2)


def test_a_long_audit_log_is_read_as_a_whole(own_redis: Redis) -> None:
    with Client.from_url(own_redis.url) as client, open_registry(own_redis.url, MODEL, PATIENT) as registry:
        line = b'%012d{"wall_ms":%d,"by":"a","what":"b","reason":"' + b"r" * 2_000 + b'"}'
        client.zadd(f"streamlearn:{{{MODEL}}}:notes", {line % (at, at): at for at in range(10_000)})
        assert len(registry.notes(10_000)) == 10_000


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_more_nodes_than_are_listed_are_said_and_cleared(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (registries, registry_redis, registry_sqlite):
        monkeypatch.setattr(module, "NODES_MAX", 3)
    url = f"sqlite://{tmp_path}/registry.db" if kind == "sqlite" else request.getfixturevalue("own_redis").url
    with open_registry(url, MODEL, PATIENT) as registry:
        for name in "abc":
            registry.beat(Node(boot_id=name, name=name))
        assert [node.name for node in registry.nodes()] == ["a", "b", "c"]
        registry.beat(Node(boot_id="d", name="d"))
        with pytest.raises(RegistryDefect, match="more than 3 nodes"):
            registry.nodes()
        registry.clear()
        assert registry.nodes() == []


@pytest.fixture
def world(local: Store) -> World:
    """A world with two versions that serves the second."""
    world = World(local, registry=None)
    world.cut(1, 2)
    world.serve(1)
    world.serve(2)
    return world


@pytest.mark.parametrize("answer", [trickle, DEEP], ids=["trickle", "deep array"])
def test_a_rollback_is_in_the_store_whatever_the_registry_answers(world: World, answer: Answer) -> None:
    settings = Settings(versions=VersionSettings(), registry=SETTINGS)
    with fake(answer) as server:
        model = Model(MODEL, world.store.url, server.url, settings)

        def move() -> object:
            return model.move(lambda now, known: rollback(now, known, 1), what="rollback", by="ada", wait_s=5.0)[0]

        (moved,) = in_time(server, move)
        model.close()
    assert getattr(moved, "pointer", moved) == world.log.newest()
    assert world.log.newest().active == world.refs[1]
    assert "does not answer" in getattr(moved, "said", "")


@pytest.mark.parametrize("answer", [trickle, DEEP], ids=["trickle", "deep array"])
def test_a_publisher_goes_on_whatever_the_registry_answers(world: World, answer: Answer) -> None:
    with fake(answer) as server, open_registry(server.url, MODEL, SETTINGS) as registry:
        announcer = Announcer(world.store, registry)
        ended = in_time(server, lambda: (announcer.moved(world.log.newest(), "promote"), announcer.keep_up()))
        assert ended == [(False, False)]


@pytest.mark.parametrize("answer", [trickle, DEEP], ids=["trickle", "deep array"])
def test_a_node_starts_whatever_the_registry_answers(world: World, answer: Answer) -> None:
    with (
        fake(answer) as server,
        open_registry(server.url, MODEL, SETTINGS) as registry,
        world.node(registry=registry, clock=SYSTEM_CLOCK, **FAST) as node,
    ):
        try:
            node.wait_ready(WAIT_S)
            assert "does not answer" in node.status().error
            world.check(node, 2)
        finally:
            server.close()


def test_a_node_starts_though_its_registry_fails_in_an_unexpected_way(world: World) -> None:
    class Broken(MemoryRegistry):
        def beat(self, node: Node) -> None:
            message = "unexpected"
            raise ValueError(message)

    registry: Registry = Broken(MODEL, SETTINGS)
    with world.node(registry=registry, clock=SYSTEM_CLOCK, **FAST) as node:
        node.wait_ready(WAIT_S)


def test_a_command_is_what_redis_py_sends_in_one_piece() -> None:
    with closing(connected(RedisUrl.parse("redis://127.0.0.1:1", ""), 1.0, 1)) as client:
        connection: Any = client.connection_pool.make_connection()
        theirs: Any = PythonRespSerializer(6_000, connection.encoder.encode)
        for words in [
            ("CONFIG GET", "maxmemory"),
            ("EVAL", "return 1", 2, "ä", b"\xff\r\n", 1.5, -3, b"x" * 20_000, memoryview(b"y" * 7_000)),
            ("PING",),
        ]:
            (sent,) = connection.pack_command(*words)
            assert sent == b"".join(map(bytes, theirs.pack(*words)))
