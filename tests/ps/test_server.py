"""A shard behind sockets: who is let in, what is refused, and how it ends."""

from __future__ import annotations

import datetime
import ipaddress
import re
import socket
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from streamlearn.access.token_file import read_token
from streamlearn.errors import ShardRefused, ShardUnreachable, StreamlearnError, UsageError
from streamlearn.features import TableSpec
from streamlearn.ps import Epoch, Place, PsClient, ShardServer, Shelf
from streamlearn.ps.metrics import ShardCollector
from streamlearn.ps.orders import Restore, ShardStats, Stats, decode_answer
from streamlearn.ps.remote import RemoteLink, Role
from streamlearn.ps.server import limits_of
from streamlearn.settings import PsSettings
from streamlearn.table import Adagrad
from streamlearn.testing import wait_until
from streamlearn.versions import Store
from tests.ps.conftest import SETTINGS
from tests.ps.model import KEYS, MODEL, OPTIONS, Twin, committed

_SOON = msgspec.structs.replace(SETTINGS, retry_wait_ms_max=600, backoff_ms_max=50)  # nobody is there


def _settings(server: ShardServer, settings: PsSettings = SETTINGS) -> PsSettings:
    return msgspec.structs.replace(settings, addresses=[server.addresses[0]])


def test_an_address_that_other_machines_reach_asks_for_a_token(store: Store) -> None:
    settings = msgspec.structs.replace(SETTINGS, listen=["0.0.0.0:0"])
    with pytest.raises(StreamlearnError, match="token"):
        ShardServer(Place(), OPTIONS, Shelf(store, MODEL), settings)


def test_who_says_another_token_is_not_let_in_and_no_error_says_one(store: Store) -> None:
    with ShardServer(Place(), OPTIONS, Shelf(store, MODEL), SETTINGS, token=b"right-token") as server:
        for token in (b"wrong-token", b"right-token-and-more", None):
            with pytest.raises(ShardRefused) as refused:
                PsClient.connect(MODEL, OPTIONS, _settings(server), token)
            assert "right-token" not in str(refused.value)
            assert "wrong-token" not in str(refused.value)
        with PsClient.connect(MODEL, OPTIONS, _settings(server), b"right-token") as client:
            client.restore(Epoch(1), None)


def test_another_model_or_other_tables_are_refused_by_name(store: Store) -> None:
    with ShardServer(Place(), OPTIONS, Shelf(store, MODEL), SETTINGS) as server:
        with pytest.raises(ShardRefused, match="other"):
            PsClient.connect("other", OPTIONS, _settings(server))
        main, side = OPTIONS
        for options, said in (
            ((main,), "tables are 'main' here, but 'main', 'side' there"),
            ((side, main), "tables are 'side', 'main' here, but 'main', 'side' there"),
            ((replace(main, spec=TableSpec("main", 16, 0.05)), side), "table 'main': dim is 16 here, but 8 there"),
            (
                (replace(main, optimizer=Adagrad(rate=0.2)), side),
                "table 'main': optimizer.rate is 0.2 here, but 0.1 there",
            ),
            (
                (main, replace(side, admission=None)),
                "table 'side': admission is None here, but {'window_ms': 1000000, ",
            ),
        ):
            with pytest.raises(ShardRefused) as refused:
                PsClient.connect(MODEL, options, _settings(server))
            assert f"shard 0 at {server.addresses[0]}: wrong_tables: {said}" in refused.value.message


def test_shards_that_do_not_have_every_part_are_refused(store: Store) -> None:
    with ShardServer(Place(0, 2), OPTIONS, Shelf(store, MODEL), SETTINGS) as server, pytest.raises(UsageError):
        PsClient.connect(MODEL, OPTIONS, _settings(server))


def test_a_shard_that_is_not_there_is_named_within_the_bound() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ShardUnreachable, match=address):
            PsClient.connect(MODEL, OPTIONS, msgspec.structs.replace(_SOON, addresses=[address]))


def test_a_unix_socket_serves_one_host(store: Store, tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SETTINGS, listen=[f"unix:{tmp_path}/shard"])
    with (
        ShardServer(Place(), OPTIONS, Shelf(store, MODEL), settings) as server,
        PsClient.connect(MODEL, OPTIONS, _settings(server)) as client,
    ):
        client.restore(Epoch(1), None)
        twin = Twin()
        twin.step(client, 1)
        twin.check(client)
    assert not (tmp_path / "shard").exists()


_STATS = msgspec.json.encode(Stats())


@pytest.mark.parametrize("role", get_args(Role))
def test_an_order_that_cannot_be_decoded_is_refused_and_the_next_one_is_answered(store: Store, role: Role) -> None:
    bodies = [b'{"order":"\x80"}', b"", b"\xff", b"[" * 100_000, b'{"order":"stats","x":' + b"[" * 100_000]
    with ShardServer(Place(), OPTIONS, Shelf(store, MODEL), SETTINGS) as server:
        server.shard.obey(Restore(Epoch(1), number=1))
        link = RemoteLink(MODEL, OPTIONS, _settings(server), role=role)
        try:
            for body in bodies:
                (refused,) = link._client.order_all([body], 120_000)
                assert isinstance(refused, ShardRefused), body[:40]
                assert "bad_request" in str(refused)
                (answer,) = link._client.order_all([_STATS], 120_000)
                assert isinstance(answer, bytes)
                assert isinstance(decode_answer(answer), ShardStats)
        finally:
            link.close()


def test_an_order_that_ends_in_any_error_leaves_the_next_one_answered(
    store: Store, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    with ShardServer(Place(), OPTIONS, Shelf(store, MODEL), SETTINGS) as server:
        link = RemoteLink(MODEL, OPTIONS, _settings(server), role="asks")
        try:
            with monkeypatch.context() as patch:
                patch.setattr("streamlearn.ps.server.decode_order", lambda body: 1 / 0)
                (refused,) = link._client.order_all([_STATS], 120_000)
            assert "internal: ZeroDivisionError" in str(refused)
            assert any("failed to obey an order" in line for line in lines)
            (answer,) = link._client.order_all([_STATS], 120_000)
            assert isinstance(answer, bytes)
            assert isinstance(decode_answer(answer), ShardStats)
        finally:
            link.close()


def test_tls_keeps_out_whom_another_authority_signed(store: Store, tmp_path: Path) -> None:
    mine, other = _authority(tmp_path, "mine"), _authority(tmp_path, "other")
    with ShardServer(Place(), OPTIONS, Shelf(store, MODEL), SETTINGS, tls=(mine[1], mine[2])) as server:
        trusting = msgspec.structs.replace(_settings(server), tls_ca=str(mine[0]))
        with PsClient.connect(MODEL, OPTIONS, trusting) as client:
            client.restore(Epoch(1), None)
            twin = Twin()
            twin.step(client, 1)
            twin.check(client)
        soon = _settings(server, _SOON)
        for settings in (msgspec.structs.replace(soon, tls_ca=str(other[0])), soon):
            with pytest.raises((ShardUnreachable, ShardRefused)):
                PsClient.connect(MODEL, OPTIONS, settings)


def test_float16_on_the_way_rounds_and_nothing_else(store: Store) -> None:
    with ShardServer(Place(), OPTIONS, Shelf(store, MODEL), SETTINGS) as server:
        settings = msgspec.structs.replace(_settings(server), encoding="float16")
        with PsClient.connect(MODEL, OPTIONS, settings) as client:
            client.restore(Epoch(1), None)
            rows = Twin().tables["main"].lookup(KEYS)
            assert np.array_equal(client.pull("main", KEYS), rows.astype(np.float16).astype(np.float32))


def test_metrics_say_what_went_through(store: Store) -> None:
    with (
        ShardServer(Place(), OPTIONS, Shelf(store, MODEL), SETTINGS) as server,
        PsClient.connect(MODEL, OPTIONS, _settings(server)) as client,
    ):
        client.restore(Epoch(1), None)
        client.pull("main", KEYS[:10])
        # It is counted when its last byte has gone, and the client may have read that before.
        wait_until(lambda: server.served()["pull_rows"] == 10, "the count of the pull")
        found = {
            (one.name, *one.labels.values()): one.value
            for family in ShardCollector(server).collect()
            for one in family.samples
        }
        assert found["streamlearn_ps_rows_total", "pull"] == 10
        assert found["streamlearn_ps_table_rows", "main"] == 0
        assert found["streamlearn_ps_connections_requests",] == 1
        assert found["streamlearn_ps_clients_requests",] == 0
        client.push("main", KEYS[:1], np.ones((1, 8), np.float32), now_ms=0)
        assert server.served()["clients"] == 1
        assert found["streamlearn_ps_clients_max_requests",] == SETTINGS.clients_max
        assert found["streamlearn_ps_exports_left_requests",] == 0
        assert found["streamlearn_ps_exports_left_max_requests",] == SETTINGS.exports_left_max
        assert client.asked()[0]["pull_requests"] == 1


def test_every_bound_of_a_shard_is_a_setting(store: Store) -> None:
    source = (Path(__file__).parents[2] / "native/ps/src/server/settings.rs").read_text()
    body = source.partition("pub struct Limits {")[2].partition("}")[0]
    bounds = dict(re.findall(r"pub (\w+): (\w+)", body))
    assert {name for name, _ in limits_of(PsSettings())} == set(bounds)
    assert {name.replace("window_max", "window_pushes_max") for name in bounds} <= set(PsSettings.__struct_fields__)
    # And they are taken: of one order that is not answered, with room for one.
    settings = msgspec.structs.replace(SETTINGS, orders_max=3, clients_max=7, in_flight_bytes_max=128 << 20)
    with ShardServer(Place(), OPTIONS, Shelf(store, MODEL), settings) as server:
        served = server.served()
        assert (served["orders_max"], served["clients_max"]) == (3, 7)
        assert served["in_flight_bytes_max"] == 128 << 20


def test_a_shard_says_in_its_log_what_became_of_it(store: Store, lines: list[str]) -> None:
    token = b"a-token-that-is-a-secret"
    with ShardServer(Place(), OPTIONS, Shelf(store, MODEL), SETTINGS, token=token) as server:
        for wrong in (b"another-secret", b""):
            with pytest.raises(ShardRefused):
                PsClient.connect(MODEL, OPTIONS, _settings(server), wrong or None)
        with PsClient.connect(MODEL, OPTIONS, _settings(server), token) as client:
            client.restore(Epoch(1), None)
            twin = Twin()
            twin.step(client, 1)
            newest = committed(client, store, 1, None).ref
            client.seal(2)
            client.abandon(2)
            client.restore(Epoch(2), None)
            client.restore(Epoch(3, 1), newest)
            twin.check(client)
        wait_until(lambda: sum("refused a connection" in line for line in lines) == 2, "both refusals")
    place, address = "shard 0/1", server.addresses[0]
    for wanted in (
        f"{place} listens on {address} model=ctr parts=[0, 1024)",
        f"{place} is at no version in epoch 1.0 rows=0 bytes=0 seconds=",
        f"{place} sealed version 1",
        f"{place} exported version 1 rows=",
        f"{place} committed version 1",
        f"{place} sealed version 2",
        f"{place} gave up version 2",
        f"{place} is at version 1 in epoch 3.1 rows=",
        f"{place} refused a connection from 127.0.0.1:",
        f"{place} stops after its current work",
        f"{place} has stopped seconds=",
    ):
        assert any(line.startswith(wanted) for line in lines), (wanted, lines)
    assert any("unauthorized: the token does not match the shard's" in line for line in lines)
    assert not any("secret" in line or "\n" in line for line in lines)
    # Not one for each push and pull.
    assert len(lines) == 13


@pytest.mark.parametrize("text", ["", "2", "2/2", "-1/2", "0/0", "1/2000", "a/b", "0/2/3", "\u0661/2"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="invalid shard position"):
        Place.parse(text)


def test_places_have_every_part_once() -> None:
    for count in (1, 2, 3, 7, 1024):
        parts = [Place(number, count).parts for number in range(count)]
        assert [begin for begin, _ in parts] == [0, *(end for _, end in parts[:-1])]
        assert parts[-1][1] == 1024


def test_a_token_is_a_file_of_one_word(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("  secret\n")
    assert read_token(file) == b"secret"
    for wrong in (b"\n", b"x" * 2000, b"two words", b"two\nlines", b"nul\0s", b"\x7f", "clé".encode(), b"\xff\xfe"):
        file.write_bytes(wrong)
        with pytest.raises(UsageError, match="token") as caught:
            read_token(file)
        assert "openssl" in caught.value.help
        assert str(file) in caught.value.message
        assert not wrong.strip() or wrong.decode("latin-1") not in str(caught.value)
    with pytest.raises(UsageError, match="read"):
        read_token(tmp_path / "none")


def _authority(folder: Path, name: str) -> tuple[Path, Path, Path]:
    """An authority's certificate, and one it signed for this machine, with its key."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {name}")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)

    def signed(subject: x509.Name, public: ec.EllipticCurvePublicKey, is_authority: bool) -> bytes:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
        )
        return built.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    paths = (folder / f"{name}-ca.pem", folder / f"{name}.pem", folder / f"{name}.key")
    paths[0].write_bytes(signed(authority, authority_key.public_key(), True))
    paths[1].write_bytes(signed(subject, key.public_key(), False))
    paths[2].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths
