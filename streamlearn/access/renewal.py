"""Renewal: tokens and certificates in files that change while a process runs, as mounted Secrets of Kubernetes do.

A file is looked at when it is needed, at most once a second. One that cannot be used leaves what was read before.
"""

from __future__ import annotations

import hmac
import logging
import ssl
import threading
import time
from pathlib import Path
from typing import TypeAlias

from streamlearn.access.token_file import read_token
from streamlearn.errors import UsageError
from streamlearn.native import native
from streamlearn.telemetry import counter

__all__ = ["GivenToken", "ServerTls", "is_token", "note_renewal", "open_token"]

GivenToken: TypeAlias = "bytes | native.Token"
"""A token that stays, or one in a file that may change."""

_LOG = logging.getLogger("streamlearn.access")
_LOOK_S = 1.0


def open_token(path: Path) -> native.Token:
    """Return the token in a file. Servers accept the former one for five minutes after it has changed.

    Raises:
        UsageError: As `read_token` does.
    """
    read_token(path)
    return native.Token(path)


def is_token(token: GivenToken, sent: bytes) -> bool:
    """Return whether a caller sent the token; this takes as long whatever it sent."""
    return hmac.compare_digest(sent, token) if isinstance(token, bytes) else token.matches(sent)


def note_renewal(files: str, error: str | None) -> None:
    """Log and count that files were read again; `error` says why they could not be used."""
    renewals = counter(
        "access", "renewals", "Changed files of tokens and certificates, by whether they could be used", ("outcome",)
    )
    renewals.labels("used" if error is None else "refused").inc()
    if error is None:
        _LOG.info("%s changed and is used for new connections", files)
    else:
        _LOG.warning("%s changed and cannot be used, so what it held before stays: %s", files, error)


class ServerTls:
    """The TLS of a server in Python: new connections get the certificate that its files hold then.

    Raises:
        UsageError: The files cannot be used.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files, self._lock = (certificate, key), threading.Lock()
        self._stamps, self._error, self._looked_s = self._stamps_now(), "", time.monotonic()
        self._context = self._made()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        with self._lock:
            if time.monotonic() - self._looked_s >= _LOOK_S:
                self._renew()
            return self._context

    def _renew(self) -> None:
        self._looked_s, stamps = time.monotonic(), self._stamps_now()
        if stamps == self._stamps:
            return
        files = " and ".join(map(str, self._files))
        try:
            self._context = self._made()
        except UsageError as error:
            if error.message != self._error:
                note_renewal(files, error.message)
            self._error = error.message
        else:
            self._stamps, self._error = stamps, ""
            note_renewal(files, None)

    def _made(self) -> ssl.SSLContext:
        context, (certificate, key) = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._files
        try:
            context.load_cert_chain(certificate, key)
        except OSError as error:  # includes ssl.SSLError
            message = f"the certificate {certificate} and the key {key} cannot be used: {error.strerror or error}"
            help = "give PEM files of a certificate and of its key, readable by this user"
            raise UsageError(message, help=help) from None
        return context

    def _stamps_now(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._files]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_ctime_ns
