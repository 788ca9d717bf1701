"""Shards and their clients with tokens and certificates that are renewed while they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import trustme

from streamlearn.access.renewal import GivenToken, open_token
from streamlearn.ps import Place, ShardServer, Shelf
from streamlearn.ps.orders import ShardStats, Stats
from streamlearn.ps.remote import RemoteLink
from streamlearn.settings import PsSettings
from streamlearn.testing import wait_until
from streamlearn.versions import Store
from tests.ps.conftest import SETTINGS
from tests.ps.model import MODEL, OPTIONS

_WAIT_S = 300.0


@contextmanager
def shard(
    store: Store, address: str, token: GivenToken | None = None, tls: tuple[Path, Path] | None = None
) -> Iterator[str]:
    settings = msgspec.structs.replace(SETTINGS, listen=[address])
    with ShardServer(Place(), OPTIONS, Shelf(store, MODEL), settings, token=token, tls=tls) as server:
        yield server.addresses[0]


def client(address: str, token: GivenToken | None = None, authority: Path | None = None) -> RemoteLink:
    settings = PsSettings(addresses=[address], tls_ca="" if authority is None else str(authority))
    return RemoteLink(MODEL, OPTIONS, settings, token, role="asks")


def answers(link: RemoteLink, wait_s: float = 120.0) -> bool:
    return isinstance(link.order_all([Stats()], wait_s)[0], ShardStats)


def test_a_client_reconnects_whichever_side_has_read_the_new_token_first(store: Store, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text("first")
    theirs.write_text("first")
    with shard(store, "127.0.0.1:0", open_token(theirs)) as address:
        link = client(address, open_token(ours))
        assert answers(link)
    with closing(link):
        # The client's file has changed, and the shard's has not: it is tried with the former token.
        ours.write_text("second")
        with shard(store, address, open_token(theirs)):
            wait_until(lambda: answers(link, 2.0), "the client is let in with its former token", _WAIT_S)
        theirs.write_text("second")
        with shard(store, address, open_token(theirs)):
            wait_until(lambda: answers(link, 2.0), "the client sends its new token", _WAIT_S)
            # The shard's file has changed, and the clients' has not.
            theirs.write_text("third")

            def lets_in(token: bytes) -> bool:
                with closing(client(address, token)) as other:
                    return answers(other)

            wait_until(lambda: lets_in(b"third"), "the shard has read its new token", _WAIT_S)
            assert lets_in(b"second")
            assert not lets_in(b"first")
            assert answers(link)


def test_a_shard_serves_the_renewed_certificate_and_a_client_reads_the_renewed_authority(
    store: Store, tmp_path: Path
) -> None:
    authorities = [trustme.CA(), trustme.CA()]
    trusted, cert, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))

    def issue(authority: trustme.CA) -> None:
        made = authority.issue_cert("localhost")
        made.cert_chain_pems[0].write_to_path(cert)
        made.private_key_pem.write_to_path(key)

    authorities[0].cert_pem.write_to_path(trusted)
    issue(authorities[0])
    second = tmp_path / "second.pem"
    authorities[1].cert_pem.write_to_path(second)
    with shard(store, "127.0.0.1:0", tls=(cert, key)) as address:
        link = client(address, authority=trusted)
        assert answers(link)

        def is_trusted(authority: Path) -> bool:
            with closing(client(address, authority=authority)) as other:
                return answers(other, 2.0)

        issue(authorities[1])
        wait_until(lambda: is_trusted(second), "new connections get the new certificate", _WAIT_S)
        assert not is_trusted(trusted)
        # The connection from before goes on.
        assert answers(link)
    with closing(link), shard(store, address, tls=(cert, key)):
        assert not answers(link, 2.0)
        authorities[1].cert_pem.write_to_path(trusted)
        wait_until(lambda: answers(link, 2.0), "the client trusts what its file holds now", _WAIT_S)
