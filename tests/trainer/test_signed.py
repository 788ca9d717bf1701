"""A trainer whose versions are signed: it goes on from signed ones alone."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from msgspec import UNSET, structs

from streamlearn.settings.versions import VersionSettings
from streamlearn.versions import Chain, History, open_store
from streamlearn.versions.format.record import encode_record
from streamlearn.versions.store.layout import MANIFEST_NAME
from tests.trainer.processes import job, said, write_app
from tests.trainer.stream import messages_of, write_messages

_WAIT_S = 300.0


def test_a_trainer_signs_what_it_writes_and_refuses_to_go_on_from_what_nobody_signed(tmp_path: Path) -> None:
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
    with job(app, "--until-offset", "0:20,1:20") as process:
        assert process.wait(_WAIT_S) == 0, said(app)
    reader = VersionSettings(trusted_keys=str(public))
    store = open_store(app.store_url, settings=reader)
    chain = Chain.find(store, app.app.name)
    assert [one.lacks for one in History(store, app.app.name).read()] == [""] * chain.version

    # Without its settings it would write what nodes refuse, on top of what it signed.
    without = ("--set", "versions.signing_key=", "--set", "versions.trusted_keys=")
    with job(app, "--until-offset", "end", *without) as process:
        assert process.wait(_WAIT_S) != 0
    assert "this store's versions are signed" in said(app)

    newest = tmp_path / "app" / "store" / chain.head.folder / MANIFEST_NAME
    newest.chmod(0o644)
    newest.write_bytes(encode_record(structs.replace(chain.manifest, signature=UNSET)))
    with job(app, "--until-offset", "end") as process:
        assert process.wait(_WAIT_S) != 0
    assert "has no signature (unsigned)" in said(app)
    assert "PRIVATE" not in said(app)
