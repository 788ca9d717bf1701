"""Guard: who may ask for what, from a request's head alone and before a byte of its body is read. Pure."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from streamlearn.console.answer import Answer, refusal

__all__ = ["Guard"]

_SCHEME = "bearer "
# An address of IPv6 in brackets, or any other name; then perhaps a port, and nothing else.
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^\[\]:]*))(?::[0-9]*)?")
_CALLERS = 'send the header "Authorization: Bearer TOKEN" with the token from the console\'s --token-file'


@dataclass(frozen=True)
class Guard:
    """The rules of one console.

    A move needs the token, in a header that no page of another site can send; without a token nobody may move anything.
    Whoever reaches the console by a loopback address may look; elsewhere looking needs the token too.

    Attributes:
        token: What callers must say to move the pointer; None where nobody may.
        is_loopback: Whether only this machine reaches the console.
    """

    token: bytes | None = field(default=None, repr=False)
    is_loopback: bool = True

    def refuse_visit(self, headers: Mapping[str, str]) -> Answer | None:
        """Why a request is refused, whatever it asks for."""
        host = headers.get("host", "")
        if self.is_loopback and not _is_loopback(host):
            # A name of somebody else's that leads to this machine: a page of his would read what people here see.
            message = f"the request is for host {host[:100]!r}, but this console serves only its own machine"
            return refusal(421, message, "use http://127.0.0.1:PORT, or a tunnel to it")
        return None

    def refuse_look(self, headers: Mapping[str, str]) -> Answer | None:
        """Why a visitor may not see what the model is like."""
        if self.is_loopback:
            return None
        return self._refuse_caller(headers)

    def refuse_move(self, headers: Mapping[str, str]) -> Answer | None:
        """Why a visitor may not move the pointer."""
        if self.token is None:
            help = "start it with --token-file FILE, or use commands such as `streamlearn rollback`"
            return refusal(403, "this console is read-only, because it was started without a token", help)
        refused = self._refuse_caller(headers)
        if refused is not None:
            return refused
        origin = headers.get("origin", "")
        if origin and origin.partition("://")[2] != headers.get("host", ""):
            return refusal(
                403,
                f"the request comes from a page of {origin[:100]!r}; only the console's own page may send it",
                "open the console",
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return refusal(415, f"the body is {kind[:100] or 'of no type'!r}", "send JSON, as application/json")
        return None

    def _refuse_caller(self, headers: Mapping[str, str]) -> Answer | None:
        said = headers.get("authorization", "")
        if not said:
            return refusal(401, "the request has no token", _CALLERS)
        given = said[len(_SCHEME) :].strip() if said.lower().startswith(_SCHEME) else ""
        if self.token is None or not hmac.compare_digest(given.encode("latin-1", "replace"), self.token):
            return refusal(401, "the token is wrong", _CALLERS)
        return None


def _is_loopback(host: str) -> bool:
    """Whether a Host header names this machine to itself."""
    named = _HOST.fullmatch(host)
    if named is None:
        return False
    bare = named[1] or named[2] or ""
    if bare.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False
