"""LeaderLink: how a worker reaches its leader, by orders of the shards' protocol."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from streamlearn.access.renewal import GivenToken
from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import GroupLost, ShardNotReady, ShardUnreachable, StreamlearnError, TableBusy
from streamlearn.native import native
from streamlearn.ps.remote import ClientIdentity, client_limits
from streamlearn.ps.specification import fingerprint_of
from streamlearn.pulse import PULSE
from streamlearn.resource import Resource
from streamlearn.table import declared_tables
from streamlearn.trainer.columns import Inputs
from streamlearn.trainer.workers.messages import (
    Ask,
    Group,
    Idle,
    Leave,
    Members,
    Message,
    Report,
    Setup,
    SliceWork,
    Welcome,
    Who,
    decode,
    encode,
    inputs_of,
)

__all__ = ["LEADER_AWAY", "LeaderLink"]

Float32s = npt.NDArray[np.float32]
LEADER_AWAY = (ShardUnreachable, ShardNotReady, TableBusy)
"""The errors of a leader that does not answer, is stopping, or is asked by too many at once: later it may answer."""
# A leader answers within half a second. Others ask for a shorter time, once.
_ANSWER_MS, _ANSWER_MS_MIN, _LEAVE_MS, _AGAIN_S = 2_000, 1_000, 500, 0.1


class LeaderLink(Resource):
    """A worker's connection to the leader at an address; it is a `Source` of slices.

    While the leader is away, calls wait `retry_wait_ms_max`, or until `stop` is set.

    Attributes:
        worker: The name under which the leader knows this process.
        setup: What this process has that must be equal in all.
        welcome: The newest state of the job and its arrays, if the leader has sent one that was not taken.
    """

    def __init__(
        self,
        folder: AppFolder,
        address: str,
        token: GivenToken | None = None,
        *,
        stop: threading.Event | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        options, settings = declared_tables(folder.app.tables, folder.settings.tables), folder.settings.ps
        client = secrets.randbits(128)
        self.worker, self.setup = f"{client:x}", Setup("", "")
        self._name, self._wait_ms = f"{socket.gethostname()}:{os.getpid()}", settings.retry_wait_ms_max
        self._stop, self._clock, self._asked = stop or threading.Event(), clock, 0
        self.welcome: tuple[Welcome, list[npt.NDArray[np.float32]]] | None = None
        tls = (settings.tls_ca, settings.tls_server_name) if settings.tls_ca else None
        dims = [table.spec.dim for table in options]
        identity = ClientIdentity(
            [address], "asks", client, folder.app.name, fingerprint_of(options), dims, "float32", secrets.randbits(64)
        )
        self._client = native.PsClient(identity, token, tls, client_limits(settings))

    def ask(self, session: int, applied: int, *, leaves: bool = False) -> tuple[Idle | SliceWork, Inputs | None] | None:
        """Wait a little for a slice or for news; None if the session is over. See `welcome` then.

        Raises:
            ShardUnreachable, ShardNotReady, TableBusy: The leader does not answer, is stopping, or has too many asks.
            ShardRefused: It refuses this worker.
            GroupLost: It has another group, or that of this worker is over.
        """
        if PULSE.is_due:
            PULSE.beat()
        head, arrays = decode(self._order(self._next_ask(session, applied, leaves=leaves)), "answer")
        if isinstance(head, Group):
            message = "the trainer has another group of processes, or this one is over"
            raise GroupLost(message, help="this worker joins the next group when it is started again")
        if isinstance(head, Welcome):
            self.welcome = (head, arrays)
            return None
        if head.session != session:
            return None
        return head, inputs_of(head, arrays) if isinstance(head, SliceWork) else None

    def assemble(self, address: str) -> list[str]:
        """Wait a little for all members of a group, this one at an address, and return theirs; raises as `ask` does."""
        head, _ = decode(self._order(self._next_ask(address=address)), "answer")
        return head.addresses if isinstance(head, Group) else []

    def report(self, report: Report, logits: Float32s) -> None:
        """Tell that all shards have a slice; raises as `ask` does."""
        self._order(report, [logits])

    def who(self, wait_s: float) -> Members:
        """Return who learns; raises as `ask` does, after this time."""
        head, _ = decode(self._order_once(Who(), (), round(wait_s * 1e3)), "answer")
        assert isinstance(head, Members)
        return head

    def leave(self, error: str = "") -> None:
        """Take leave, if the leader is there."""
        with suppress(StreamlearnError):
            self._order_once(Leave(self.worker, error[:256]), (), _LEAVE_MS)

    def close(self) -> None:
        """Disconnect."""
        self._client.close()

    def _next_ask(self, session: int = 0, applied: int = 0, *, leaves: bool = False, address: str = "") -> Ask:
        self._asked += 1
        return Ask(self.worker, self._name, self.setup, self._asked, session, applied, leaves, address)

    def _order(self, head: Message, arrays: Sequence[Float32s] = ()) -> bytes:
        """Send a message and return the answer; repeated until the leader, which may be starting again, answers."""
        deadline_s = self._clock.monotonic_s() + self._wait_ms / 1e3
        while True:
            begin_s = self._clock.monotonic_s()
            try:
                return self._order_once(head, arrays, min(_ANSWER_MS, max(_ANSWER_MS_MIN, self._wait_ms)))
            except LEADER_AWAY:
                now_s = self._clock.monotonic_s()
                if now_s > deadline_s or self._stop.wait(max(0.0, begin_s + _AGAIN_S - now_s)):
                    raise

    def _order_once(self, head: Message, arrays: Sequence[Float32s], wait_ms: int) -> bytes:
        (answer,) = self._client.order_all([encode(head, arrays)], wait_ms)
        if isinstance(answer, StreamlearnError):
            raise _of_leader(answer)
        if isinstance(answer, BaseException):
            raise answer
        return bytes(answer)


def _of_leader(error: StreamlearnError) -> StreamlearnError:
    """Return an error of the shards' protocol as one of the leader, which is no shard."""
    if isinstance(error, LEADER_AWAY):
        help = "check that `streamlearn train APP` runs there, with this address in workers.listen"
    else:
        help = "give the worker the application, the settings, the release and the token of the trainer"
    return type(error)(error.message.replace("shard 0 at ", "the trainer at ", 1), help=help)
