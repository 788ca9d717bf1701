"""A shard behind sockets: who is let in, what is refused, and how it ends."""

from __future__ import annotations

import datetime
import ipaddress
import socket
from pathlib import Path

import msgspec
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from streamlearn.errors import ShardRefused, ShardUnreachable, StreamlearnError, UsageError
from streamlearn.ps import Epoch, Place, PsClient, ShardServer, Shelf, read_token
from streamlearn.ps.metrics import ShardCollector
from streamlearn.settings import PsSettings
from streamlearn.versions import Store
from tests.ps.conftest import SETTINGS
from tests.ps.model import KEYS, MODEL, OPTIONS, Twin

_SOON = msgspec.structs.replace(SETTINGS, connect_wait_ms_max=300, retry_wait_ms_max=600, backoff_ms_max=50)


def _settings(server: ShardServer, settings: PsSettings = _SOON) -> PsSettings:
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
        with pytest.raises(ShardRefused, match="tables"):
            PsClient.connect(MODEL, OPTIONS[:1], _settings(server))


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


def test_tls_keeps_out_whom_another_authority_signed(store: Store, tmp_path: Path) -> None:
    mine, other = _authority(tmp_path, "mine"), _authority(tmp_path, "other")
    with ShardServer(Place(), OPTIONS, Shelf(store, MODEL), SETTINGS, tls=(mine[1], mine[2])) as server:
        trusting = msgspec.structs.replace(_settings(server), tls_ca=str(mine[0]))
        with PsClient.connect(MODEL, OPTIONS, trusting) as client:
            client.restore(Epoch(1), None)
            twin = Twin()
            twin.step(client, 1)
            twin.check(client)
        for settings in (msgspec.structs.replace(trusting, tls_ca=str(other[0])), _settings(server)):
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
        found = {
            (one.name, *one.labels.values()): one.value
            for family in ShardCollector(server).collect()
            for one in family.samples
        }
        assert found["streamlearn_ps_rows_total", "pull"] == 10
        assert found["streamlearn_ps_table_rows", "main"] == 0
        assert found["streamlearn_ps_connections_requests",] == 1
        assert client.asked()[0]["pull_requests"] == 1


@pytest.mark.parametrize("text", ["", "2", "2/2", "-1/2", "0/0", "1/2000", "a/b", "0/2/3", "\u0661/2"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="place"):
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
    for wrong in (b"\n", b"x" * 2000):
        file.write_bytes(wrong)
        with pytest.raises(UsageError, match="token"):
            read_token(file)
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
