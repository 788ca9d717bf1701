"""Guard: decides from a request's head alone whether it is allowed, before its body is read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamlearn.access.renewal import GivenToken, is_token
from streamlearn.console.answer import Answer, refusal
from streamlearn.loopback import names_loopback

__all__ = ["Guard"]

_SCHEME = "bearer "
_CALLERS = 'send the header "Authorization: Bearer TOKEN" with the token from the console\'s --token-file'


@dataclass(frozen=True)
class Guard:
    """The rules of one console. Each method returns why a request is refused, or None.

    A move needs the token, in a header that no page of another site can send. Reading needs the token unless the
    console listens on a loopback address.

    Attributes:
        token: The token for moves; without one, nothing may be moved.
        is_loopback: Whether only this machine reaches the console.
    """

    token: GivenToken | None = field(default=None, repr=False)
    is_loopback: bool = True

    def refuse_visit(self, headers: Mapping[str, str]) -> Answer | None:
        """Check any request."""
        host = headers.get("host", "")
        if self.is_loopback and not names_loopback(host):
            message = f"the request is for host {host[:100]!r}, but this console serves only its own machine"
            return refusal(421, message, "use http://127.0.0.1:PORT, or a tunnel to it")
        return None

    def refuse_look(self, headers: Mapping[str, str]) -> Answer | None:
        """Check a request that reads the model's state."""
        return None if self.is_loopback else self._refuse_caller(headers)

    def refuse_move(self, headers: Mapping[str, str]) -> Answer | None:
        """Check a request that moves the pointer."""
        if self.token is None:
            help = "start it with --token-file FILE, or use commands such as `streamlearn rollback`"
            return refusal(403, "this console is read-only, because it was started without a token", help)
        refused = self._refuse_caller(headers)
        if refused is not None:
            return refused
        origin = headers.get("origin", "")
        if origin and origin.partition("://")[2] != headers.get("host", ""):
            message = f"the request comes from a page of {origin[:100]!r}; only the console's own page may send it"
            return refusal(403, message, "open the console")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return refusal(415, f"the body is {kind[:100] or 'of no type'!r}", "send JSON, as application/json")
        return None

    def _refuse_caller(self, headers: Mapping[str, str]) -> Answer | None:
        header = headers.get("authorization", "")
        if not header:
            return refusal(401, "the request has no token", _CALLERS)
        token = header[len(_SCHEME) :].strip() if header.lower().startswith(_SCHEME) else ""
        if self.token is None or not is_token(self.token, token.encode("latin-1", "replace")):
            return refusal(401, "the token is wrong", _CALLERS)
        return None
