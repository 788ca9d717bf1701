"""A trainer whose versions are signed: it goes on from signed ones alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from msgspec import UNSET, structs

from streamlearn.errors import StreamlearnError
from streamlearn.settings.versions import VersionSettings
from streamlearn.versions import Chain, History, open_store
from streamlearn.versions.format.record import encode_record
from streamlearn.versions.store.layout import MANIFEST_NAME
from tests.trainer.processes import write_app
from tests.trainer.stream import messages_of, write_messages


def test_a_trainer_signs_what_it_writes_and_refuses_to_go_on_from_what_nobody_signed(
    tmp_path: Path, verb: Callable[..., Any]
) -> None:
    key = Ed25519PrivateKey.generate()
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    keys = {"store": f"file://{tmp_path}/app/store", "signing_key": str(private), "trusted_keys": str(public)}
    app = write_app(
        tmp_path / "app",
        {"trainer": {"step_rows": 64}, "publisher": {"publish_interval_s": 0.05}, "versions": keys},
        model="logistic",
    )
    write_messages(app, messages_of(app.app, 40))
    done = verb(app, "--until-offset", "0:20,1:20")
    assert done.exit_code == 0, done.output
    reader = VersionSettings(trusted_keys=str(public))
    store = open_store(app.store_url, settings=reader)
    chain = Chain.find(store, app.app.name)
    assert [one.lacks for one in History(store, app.app.name).read()] == [""] * chain.version

    # Without its settings it would write what nodes refuse, on top of what it signed.
    without = ("--set", "versions.signing_key=", "--set", "versions.trusted_keys=")
    refused(verb(app, "--until-offset", "end", *without), "this store's versions are signed")

    newest = tmp_path / "app" / "store" / chain.head.folder / MANIFEST_NAME
    newest.chmod(0o644)
    newest.write_bytes(encode_record(structs.replace(chain.manifest, signature=UNSET)))
    refused(verb(app, "--until-offset", "end"), "has no signature (unsigned)")


def refused(result: Any, said: str) -> None:
    assert isinstance(result.exception, StreamlearnError)
    text = f"{result.exception.message}\n{result.exception.help}"
    assert said in text
    assert "PRIVATE" not in text + result.output
