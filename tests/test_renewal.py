"""Tokens and certificates in files that change: servers in Python and the door of a node take them as they are."""

from __future__ import annotations

import logging
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client import REGISTRY

from streamlearn import metrics_server
from streamlearn.access.renewal import ServerTls, is_token, open_token
from streamlearn.errors import UsageError
from streamlearn.metrics_server import serve_metrics
from streamlearn.native import native
from streamlearn.serving.node import NodeLimits
from streamlearn.settings.telemetry import TelemetrySettings
from streamlearn.testing import wait_until
from tests.serving.test_front import Rig

_WAIT_S = 300.0


class Mounted:
    """A folder as Kubernetes mounts a Secret: files are links into a folder that one link names."""

    def __init__(self, folder: Path, **files: bytes) -> None:
        self._folder, self._times = folder, 0
        folder.mkdir()
        self.swap(**files)
        for name in files:
            (folder / name).symlink_to(f"..data/{name}")

    def __call__(self, name: str) -> Path:
        return self._folder / name

    def swap(self, **files: bytes) -> None:
        """Renew all files at one moment."""
        self._times += 1
        kept = self._folder / f"..{self._times}"
        kept.mkdir()
        for name, content in files.items():
            (kept / name).write_bytes(content)
        (self._folder / "..next").symlink_to(kept.name)
        (self._folder / "..next").replace(self._folder / "..data")


def renewals(outcome: str) -> float:
    return REGISTRY.get_sample_value("streamlearn_access_renewals_total", {"outcome": outcome}) or 0.0


def issued(authority: trustme.CA) -> dict[str, bytes]:
    made = authority.issue_cert("127.0.0.1", "localhost")
    return {"cert": made.cert_chain_pems[0].bytes(), "key": made.private_key_pem.bytes()}


@contextmanager
def logged() -> Iterator[list[str]]:
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler = logging.getLogger("streamlearn.access"), Lines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_a_token_is_read_again_when_its_secret_is_swapped_and_the_former_one_is_accepted_too(tmp_path: Path) -> None:
    secret = Mounted(tmp_path / "secret", token=b"first-secret\n")
    token, used, refused = open_token(secret("token")), renewals("used"), renewals("refused")
    assert token.matches(b"first-secret")
    assert not token.matches(b"second-secret")
    with logged() as lines:
        secret.swap(token=b"second-secret\n")
        wait_until(lambda: token.matches(b"second-secret"), "the new token is known", _WAIT_S)
        assert token.current() == b"second-secret"
        assert is_token(token, b"first-secret")
        assert not is_token(token, b"third")
        secret.swap(token=b"not a token")
        wait_until(lambda: token.matches(b"second-secret") and renewals("refused") > refused, "it is refused", _WAIT_S)
    assert renewals("used") == used + 1
    assert any("is used for new connections" in line for line in lines)
    assert any("cannot be used" in line for line in lines)
    assert not any("first-secret" in line or "second-secret" in line or "not a token" in line for line in lines)
    assert "second-secret" not in repr(token)
    with pytest.raises(UsageError):
        open_token(secret("token"))


def test_metrics_are_given_for_the_token_that_the_file_holds_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "_ARRIVAL_S", _WAIT_S)
    secret = Mounted(tmp_path / "secret", token=b"first")
    settings = TelemetrySettings(token_file=str(secret("token")))
    with serve_metrics(settings, "127.0.0.1:0") as server:
        assert server is not None

        def status(token: str) -> int:
            asked = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics")
            asked.add_header("authorization", f"Bearer {token}")
            try:
                with urllib.request.urlopen(asked, timeout=120) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        assert (status("first"), status("second")) == (200, 401)
        secret.swap(token=b"second")
        wait_until(lambda: status("second") == 200, "the new token is accepted", _WAIT_S)
        assert (status("first"), status("third")) == (200, 401)


def served_by(address: str, authority: trustme.CA) -> bytes | None:
    """The certificate that a new connection gets; None if it is not trusted."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    host, _, port = address.rpartition(":")
    with (
        suppress(ssl.SSLError),
        socket.create_connection((host, int(port)), 120) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        return connection.getpeercert(binary_form=True)
    return None


def check_renewal(secret: Mounted, authority: trustme.CA, certificate: Callable[[], bytes | None]) -> None:
    """A renewed pair is taken, half of one is not, and the next pair is again."""
    refused, first = renewals("refused"), certificate()
    assert first is not None
    pair = issued(authority)
    secret.swap(**pair)
    wait_until(lambda: certificate() not in (first, None), "the renewed certificate is served", _WAIT_S)
    second, other = certificate(), issued(authority)
    for half in ({"cert": other["cert"], "key": pair["key"]}, {"cert": other["cert"][:100], "key": other["key"]}):
        before = renewals("refused")
        secret.swap(**half)

        def is_refused(before: float = before) -> bool:
            return certificate() == second and renewals("refused") > before

        wait_until(is_refused, "half of a pair is refused", _WAIT_S)
    secret.swap(**other)
    wait_until(lambda: certificate() not in (first, second, None), "the next pair is served", _WAIT_S)
    assert renewals("refused") == refused + 2


def test_a_server_in_python_takes_renewed_certificates_and_no_half_of_a_pair(tmp_path: Path) -> None:
    authority = trustme.CA()
    secret = Mounted(tmp_path / "secret", **issued(authority))
    tls = ServerTls(secret("cert"), secret("key"))

    def certificate() -> bytes | None:
        ours, theirs = socket.socketpair()
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with ours, theirs:
            server = tls.context().wrap_bio(incoming := ssl.MemoryBIO(), outgoing := ssl.MemoryBIO(), server_side=True)
            client = context.wrap_bio(
                from_server := ssl.MemoryBIO(), to_server := ssl.MemoryBIO(), server_hostname="localhost"
            )
            for _ in range(4):
                with suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                incoming.write(to_server.read())
                with suppress(ssl.SSLWantReadError):
                    server.do_handshake()
                from_server.write(outgoing.read())
            return client.getpeercert(binary_form=True)

    check_renewal(secret, authority, certificate)


@contextmanager
def door(token: Any, tls: tuple[Path, Path] | None) -> Iterator[Any]:
    rig = Rig()
    made = native.FrontNode(
        "shop", rig.front, ("127.0.0.1:0", "127.0.0.1:0"), NodeLimits(1, 100, 100, 1 << 16, 5_000), metrics=str,
        token=token, tls=tls,
    )  # fmt: skip
    try:
        yield made
    finally:
        made.stop()
        rig.close()


def test_a_node_takes_renewed_certificates_and_no_half_of_a_pair(tmp_path: Path) -> None:
    authority = trustme.CA()
    secret = Mounted(tmp_path / "secret", **issued(authority))
    with door("word", (secret("cert"), secret("key"))) as node:
        check_renewal(secret, authority, lambda: served_by(node.http, authority))


def test_a_node_accepts_the_token_that_its_file_holds_now_and_the_one_before(tmp_path: Path) -> None:
    secret = Mounted(tmp_path / "secret", token=b"first")
    with door(open_token(secret("token")), None) as node:

        def status(token: str) -> int:
            asked = urllib.request.Request(f"http://{node.http}/v2", headers={"authorization": f"Bearer {token}"})
            try:
                with urllib.request.urlopen(asked, timeout=120) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        assert (status("first"), status("second")) == (200, 401)
        secret.swap(token=b"second")
        wait_until(lambda: status("second") == 200, "the new token is accepted", _WAIT_S)
        assert (status("first"), status("third")) == (200, 401)
        (tmp_path / "secret" / "..data").unlink()
        assert status("second") == 200
