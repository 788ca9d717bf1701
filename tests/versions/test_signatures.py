"""Signed versions: with keys given, nothing is read of a version that none of them has signed."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from msgspec import structs

from streamlearn.errors import ConfigError, StreamlearnError, VersionDefect
from streamlearn.publisher import compact_apart
from streamlearn.settings.versions import VersionSettings
from streamlearn.testing import ManualClock
from streamlearn.versions import (
    Chain,
    History,
    Store,
    compact,
    export_version,
    import_version,
    open_store,
    verify,
    write_revert,
)
from streamlearn.versions.format.log import read_manifest
from streamlearn.versions.format.manifest import decode_manifest
from streamlearn.versions.format.record import encode_record
from streamlearn.versions.format.signatures import Signatures
from tests.versions.history import MODEL, Trainer
from tests.versions.nodes import SpiedStore, World

_PKCS8 = Encoding.PEM, PrivateFormat.PKCS8


def key_of(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


class Keys:
    """Files of keys, by the numbers of the keys in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def private(self, number: int) -> str:
        file = self.folder / f"private-{number}.pem"
        file.write_bytes(key_of(number).private_bytes(*_PKCS8, NoEncryption()))
        return str(file)

    def public(self, *numbers: int) -> str:
        file = self.folder / f"public-{'-'.join(map(str, numbers))}.pem"
        keys = [key_of(one).public_key() for one in numbers]
        file.write_bytes(b"".join(one.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for one in keys))
        return str(file)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys")


@pytest.fixture
def opened(tmp_path: Path, keys: Keys) -> Callable[..., Store]:
    """Opens one store, to sign with a key and to trust some."""

    def open_with(signs: int = 0, trusts: tuple[int, ...] = ()) -> Store:
        signing, trusted = keys.private(signs) if signs else "", keys.public(*trusts) if trusts else ""
        return open_store(str(tmp_path / "store"), settings=VersionSettings(signing_key=signing, trusted_keys=trusted))

    return open_with


def versions_of(store: Store) -> list[int]:
    return [one.manifest.version for one in Chain.find(store, MODEL).links]


def refused(store: Store, version: int | None = None) -> str:
    with pytest.raises(VersionDefect) as found:
        Chain.find(store, MODEL, version)
    assert found.value.defect == "unsigned"
    return found.value.message


def file_of(tmp_path: Path, version: int, shape: str = "deltas") -> Path:
    return tmp_path / "store" / MODEL / shape / f"{version:012d}-00000001" / "manifest.json"


def test_signed_versions_are_read_by_whoever_has_the_key_and_by_whoever_has_none(opened: Any) -> None:
    trainer = Trainer(opened(signs=1, trusts=(1,)))
    trainer.story([1, 2, 3])
    assert versions_of(opened(trusts=(1,))) == [1, 2, 3]
    assert versions_of(opened()) == [1, 2, 3]
    assert [one.lacks for one in History(opened(trusts=(1,)), MODEL).read()] == ["", "", ""]
    assert read_manifest(opened(trusts=(1,)), trainer.last.folder) == trainer.last.manifest  # type: ignore[union-attr]


def test_a_version_that_nobody_signed_is_refused_by_name_before_any_other_file_of_it_is_read(opened: Any) -> None:
    signed = Trainer(opened(signs=1))
    signed.story([1, 2])
    stranger = Trainer(opened(), last=signed.last, tables=signed.tables)
    stranger.story([3])
    store = SpiedStore(opened(trusts=(1,)))
    said = refused(store)
    assert "deltas/000000000003-00000001/manifest.json: it has no signature (unsigned)" in said
    assert all(path.endswith("manifest.json") for path in store.reads)
    assert versions_of_at(store, 2) == [1, 2]
    with pytest.raises(VersionDefect, match="unsigned"):
        read_manifest(store, stranger.last.folder)  # type: ignore[union-attr]
    # What verbs and the console show.
    assert [one.lacks.rpartition(" ")[2] for one in History(store, MODEL).read()] == ["", "", "(unsigned)"]
    assert {one.defect for one in verify(store, MODEL, everything=True).defects} == {"unsigned"}
    assert verify(opened(), MODEL, everything=True).defects == ()


def versions_of_at(store: Store, version: int) -> list[int]:
    return [one.manifest.version for one in Chain.find(store, MODEL, version).links]


def test_a_version_signed_by_another_key_is_refused(opened: Any) -> None:
    Trainer(opened(signs=2)).story([1])
    assert "its signature matches none of the 1 trusted keys" in refused(opened(trusts=(1,)))


def test_keys_are_rotated_without_a_pause(opened: Any, tmp_path: Path) -> None:
    trainer = Trainer(opened(signs=1, trusts=(1,)))
    trainer.story([1])
    rotated = Trainer(opened(signs=2, trusts=(1, 2)), last=trainer.last, tables=trainer.tables)
    rotated.story([2])
    assert versions_of(opened(trusts=(1, 2))) == [1, 2]
    refused(opened(trusts=(2,)))
    compact(opened(signs=2, trusts=(1, 2)), MODEL)
    # The old key is needed as long as a version that it signed is in the store.
    refused(opened(trusts=(2,)))
    shutil.rmtree(file_of(tmp_path, 1, "bases").parent)
    assert versions_of(opened(trusts=(2,))) == [2]


def test_no_byte_of_a_signed_manifest_can_be_changed(opened: Any, tmp_path: Path) -> None:
    Trainer(opened(signs=1)).story([1])
    file = file_of(tmp_path, 1, "bases")
    before = file.read_bytes()
    said = json.loads(before)
    for change in ({"graph": "0" * 64}, {"written_wall_ms": 1}, {"signature": "0" * 128}):
        made = encode_record(structs.replace(decode_manifest(before, "manifest"), **change))
        file.chmod(0o644)
        file.write_bytes(made)
        refused(opened(trusts=(1,)))
        assert versions_of(opened()) == [1]
    assert list(said)[-2:] == ["signature", "check"]


def test_fields_after_the_signature_are_not_taken_for_signed(opened: Any, tmp_path: Path) -> None:

    Trainer(opened(signs=1)).story([1])
    raw = file_of(tmp_path, 1, "bases").read_bytes()
    body, _, rest = raw.partition(b',"signature":')
    signatures = opened(trusts=(1,)).signatures
    signatures.check(raw, "manifest.json")
    for bad in (body + b',"graph":"00"' + b',"signature":' + rest, body + rest, raw + b" ", raw[:-1], b""):
        with pytest.raises(VersionDefect, match="unsigned"):
            signatures.check(bad, "manifest.json")


def test_what_was_verified_cannot_be_changed_in_place_afterwards(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlearn.versions.store.local.MAPPED_BYTES_MIN", 1)
    sha256 = opened().create("ctr/x", b"signed").sha256
    read = {trusts: opened(trusts=trusts).read("ctr/x", bytes_max=9, sha256=sha256) for trusts in ((), (1,))}
    file = tmp_path / "store" / "ctr" / "x"
    file.chmod(0o644)
    with file.open("r+b") as changed:
        changed.write(b"stolen")
    assert {trusts: bytes(data) for trusts, data in read.items()} == {(): b"stolen", (1,): b"signed"}


def test_the_signature_of_a_manifest_stays_the_same(keys: Keys, local: Store) -> None:
    committed = Trainer(local).cut(1)
    signed = Signatures(VersionSettings(signing_key=keys.private(7))).signed(committed.manifest)

    raw = encode_record(signed)
    body = raw[: raw.index(b',"signature"')]
    key_of(7).public_key().verify(bytes.fromhex(str(signed.signature)), b"streamlearn manifest 1\n" + body)
    assert encode_record(committed.manifest)[: len(body)] == body


def base(store: Store) -> Any:
    return compact(store, MODEL)


def revert(store: Store) -> Any:
    return write_revert(store, MODEL, to=1, run=1, clock=ManualClock())


@pytest.mark.parametrize("write", [base, revert])
def test_bases_and_reverts_are_signed_and_without_the_key_nothing_is_written(
    opened: Any, tmp_path: Path, write: Callable[[Store], Any]
) -> None:
    Trainer(opened(signs=1, trusts=(1,))).story([1, 2])
    before = sorted((tmp_path / "store").rglob("*"))
    # Also where nobody says that versions are signed, as with MODEL and --store alone.
    for store in (opened(trusts=(1,)), opened()):
        with pytest.raises(ConfigError, match=r"versions\.signing_key is not set") as found:
            write(store)
        assert "where the trainer's private key is" in found.value.help
    assert sorted((tmp_path / "store").rglob("*")) == before
    write(opened(signs=1, trusts=(1,)))
    assert sorted((tmp_path / "store").rglob("*")) != before
    assert Chain.find(opened(trusts=(1,)), MODEL).version == (2 if write is base else 3)


def test_the_process_that_compacts_signs_too(opened: Any) -> None:
    store = opened(signs=1, trusts=(1,))
    Trainer(store).story([1, 2])
    compact_apart(store.url, MODEL, store.settings)(2)
    assert versions_of(opened(trusts=(1,))) == [2]


def test_an_unsigned_base_of_a_signed_version_is_refused(opened: Any) -> None:
    signed = Trainer(opened(signs=1))
    *_, last = signed.story([1, 2])
    Trainer(opened(), last=last, tables=signed.tables).base(last)
    assert "bases/000000000002-00000001" in refused(opened(trusts=(1,)))


def test_an_import_is_signed_by_whoever_imports(opened: Any, keys: Keys, tmp_path: Path) -> None:
    Trainer(opened()).story([1])
    export_version(opened(), MODEL, None, tmp_path / "out")
    trusting = VersionSettings(trusted_keys=keys.public(1))
    with pytest.raises(ConfigError, match="signing_key"):
        import_version(open_store(str(tmp_path / "there"), settings=trusting), MODEL, tmp_path / "out")
    signing = VersionSettings(trusted_keys=keys.public(1), signing_key=keys.private(1))
    import_version(open_store(str(tmp_path / "there"), settings=signing), MODEL, tmp_path / "out")
    assert versions_of(open_store(str(tmp_path / "there"), settings=trusting)) == [1]


def test_a_node_stays_at_the_signed_version_and_says_why(opened: Any) -> None:
    world = World(opened(signs=1), registry=None)
    world.cut(1, 2)
    world.serve(2)
    node = world.node(store=opened(trusts=(1,)))
    node.step()
    world.check(node, 2)
    world.trainer.store = opened()
    world.cut(3)
    world.serve(3)
    node.step()
    world.check(node, 2)
    assert "(unsigned)" in node.status().error
    node.close()


# (what is in the file, what is said)
def encrypted() -> bytes:
    return key_of(1).private_bytes(*_PKCS8, BestAvailableEncryption(b"word"))


def rsa() -> bytes:
    return generate_private_key(65_537, 2_048).private_bytes(*_PKCS8, NoEncryption())


@pytest.mark.parametrize("data", [encrypted, rsa, lambda: b"", lambda: b"-----BEGIN PRIVATE KEY-----\nx"])
def test_a_file_that_is_no_signing_key_is_refused_without_showing_it(
    keys: Keys, tmp_path: Path, data: Callable[[], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(data())
    with caplog.at_level(logging.DEBUG), pytest.raises(ConfigError) as found:
        Signatures(VersionSettings(signing_key=str(file))).check_can_sign()
    assert f"{file} must hold one Ed25519 private key" in found.value.message
    assert "openssl genpkey" in found.value.help
    assert "PRIVATE" not in str(found.value) + caplog.text


def test_a_signing_key_that_nobody_trusts_is_refused_before_it_signs(opened: Any) -> None:
    with pytest.raises(ConfigError, match=r"the public key of \S+private-2.pem is not in \S+public-1.pem"):
        opened(signs=2, trusts=(1,)).signatures.check_can_sign()


@pytest.mark.parametrize("data", [b"", b"-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n", None])
def test_public_keys_that_cannot_be_read_keep_a_store_from_being_opened(tmp_path: Path, data: bytes | None) -> None:
    file = tmp_path / "keys.pem"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(StreamlearnError) as found:
        open_store(str(tmp_path), settings=VersionSettings(trusted_keys=str(file)))
    assert str(file) in found.value.message


def test_nothing_of_cryptography_is_loaded_without_keys() -> None:
    code = "import sys; from streamlearn.versions import open_store as o; o('/x'); print('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
