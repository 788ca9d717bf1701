"""NodeSearch: has serving nodes find the items of users, and rank them, behind all other requests. It keeps no list."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from streamlearn.access.renewal import GivenToken
from streamlearn.apps import App
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import BadRecord, RegistryUnreachable, StreamlearnError
from streamlearn.features import FeatureSpec, Slot, keys_of
from streamlearn.load.load_run import Load
from streamlearn.native import native
from streamlearn.nearline.candidate_list import CandidateList
from streamlearn.serving.infer import InferAnswer, InferRequest, Tensor, numbers_tensor
from streamlearn.versions.pointer.registry import Node

__all__ = ["NodeSearch", "Outcome", "Unfound"]

_LOG = logging.getLogger(__name__)
# The last to be served, and the first to be shed.
_PRIORITY = 255
# The deadline of a request, and how much longer its answer may take to come.
_DEADLINE_MS, _WAIT_S = 2_000, 3.0
_NODES_S = 1.0
_READY = ("ready", "stale")
# Asked again, the node would say the same; or perhaps, if it failed.
_WRONG, _FAILED = ("INVALID_ARGUMENT", "OUT_OF_RANGE"), "INTERNAL"


# The gRPC code of a refusal, what it says, and the answer of a node: there is a code or an answer, or neither in time.
Outcome = tuple[str | None, str, bytes | None]


class Unfound(Enum):
    """Why a user has no list: its request is wrong, or no node could answer it now, or one failed at it."""

    WRONG = 0
    LATER = 1
    FAILED = 2


class NodeSearch:
    """Asks one node at a time, in turn. One thread calls `ask`, and another may meanwhile call the other methods.

    Attributes:
        read: The features that its requests have, on the side of users.

    Args:
        app: The application, which has retrieval.
        k: How many items a list has.
        nodes: Returns the nodes, such as `Registry.nodes`; each has a gRPC address.
        token: The token for the nodes. When it changes, new connections are made.
        is_ranked: Whether the ranking model orders the items that a search finds.
        authority: The file of the authority that signed the certificates of nodes. With it, only nodes that take TLS
            are asked, and without it only others.
    """

    def __init__(
        self,
        app: App,
        k: int,
        nodes: Callable[[], Sequence[Node]],
        token: GivenToken | None = None,
        *,
        is_ranked: bool = False,
        authority: Path | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        assert app.retrieval is not None
        assert app.towers is not None
        self._slot, self._nodes, self._token, self._clock = app.features.slot(app.features.item_id), nodes, token, clock
        self.read: FeatureSpec = app.features if is_ranked else app.towers
        self._score = app.retrieval.label if is_ranked else "score"
        wanted = [numbers_tensor(name, np.array([k], np.int64)) for name in ("k", "candidates")[: 1 + is_ranked]]
        parameters: dict[str, int | str] = {"priority": _PRIORITY, "deadline_ms": _DEADLINE_MS}
        if is_ranked:
            parameters["shown"] = ""  # a list is not shown yet, so no impression is written
        model = f"{app.served_name}.{'recommend' if is_ranked else 'retrieve'}"
        self._head = InferRequest(model, tuple(wanted), parameters=parameters).encode()
        self._authority = authority
        self._loads: dict[str, Load] = {}
        self._sent: bytes | None = None  # the token of these connections
        self._addresses: list[str] = []
        self._asked_s, self._turn = -_NODES_S, 0
        self._trouble = ""  # why no node can be asked, if none can
        self._said = ""  # the trouble that was logged last, if it has not ended

    def message(self, inputs: tuple[Tensor, ...]) -> bytes:
        """Return the request of a user, by the inputs of its features."""
        return self._head + InferRequest("", inputs).encode_inputs()

    def ask(self, messages: Sequence[bytes]) -> list[Outcome]:
        """Send requests to the next node, and return what becomes of each. Only this method waits."""
        if (now_s := self._clock.monotonic_s()) - self._asked_s >= _NODES_S:
            self._asked_s = now_s
            self._look()
        if self._addresses:
            self._turn = (self._turn + 1) % len(self._addresses)
            address = self._addresses[self._turn]
            try:
                if address not in self._loads:
                    token = None if self._sent is None else self._sent.decode("latin-1")
                    self._loads[address] = Load(address, token=token, authority=self._authority, connections=1)
                return self._loads[address].outcomes(messages, _WAIT_S)
            except StreamlearnError as error:
                self._trouble = error.message
        return [(None, self._trouble, None)] * len(messages)

    def lists(self, users: Sequence[int], outcomes: Sequence[Outcome]) -> list[CandidateList | Unfound]:
        """Return the list of each user, by its key and what became of its request."""
        made_ms, trouble, lists = self._clock.wall_ms(), "", list[CandidateList | Unfound]()
        for user, (code, reply, answer) in zip(users, outcomes, strict=True):
            if answer is None:
                lists.append(_why(code))
                trouble = f"a node says {code}: {reply}" if code else reply or "a node did not answer in time"
                continue
            try:
                lists.append(_list_of(user, answer, (self._slot, self._score), made_ms))
            except BadRecord as error:
                lists.append(Unfound.WRONG)
                trouble = error.message
        if trouble and not self._said:
            _LOG.warning("lists wait: %s", trouble)
        elif self._said and not trouble:
            _LOG.warning("lists are found again")
        self._said = trouble
        return lists

    def _look(self) -> None:
        """Learn which nodes there are, and the token; nodes known before stay if the registry does not answer."""
        token = self._token.current() if isinstance(self._token, native.Token) else self._token
        if token != self._sent:
            self._loads, self._sent = {}, token
        try:
            nodes = [node for node in self._nodes() if node.state in _READY and node.grpc]
        except RegistryUnreachable as error:
            self._trouble = error.message
            return
        has_tls = self._authority is not None
        self._addresses = sorted(node.grpc for node in nodes if node.has_tls == has_tls)
        self._loads = {address: load for address, load in self._loads.items() if address in self._addresses}
        wrong = "no node takes TLS, and --ca asks for it" if has_tls else "the nodes take TLS: give --ca FILE"
        self._trouble = wrong if nodes else "no node is ready"


def _why(code: str | None) -> Unfound:
    if code in _WRONG:
        return Unfound.WRONG
    return Unfound.FAILED if code == _FAILED else Unfound.LATER


def _list_of(user: int, answer: bytes, outputs: tuple[Slot, str], made_ms: int) -> CandidateList:
    """Return what an answer says; raises BadRecord if it is not one of a node that finds items."""
    (slot, score), decoded = outputs, InferAnswer.decode(answer)
    try:
        ids, scores = decoded.outputs["id"], decoded.outputs[score].numbers
        values: Any = ids.values if slot.value == "str" else ids.numbers
        version, digest = int(decoded.version), int(decoded.parameters["digest"], 16)
        as_of_ms = int(decoded.parameters.get("as_of_ms", -1))
        keys = keys_of(slot, values)
    except (KeyError, ValueError) as error:
        message = f"an answer is not one of a node that finds items: {error!r}"
        raise BadRecord(message, help="nodes and this process must be of one release") from None
    if keys.shape != scores.shape:
        message = f"an answer has {len(keys)} items and {scores.shape} scores"
        raise BadRecord(message, help="nodes and this process must be of one release")
    return CandidateList(user, version, digest, as_of_ms, made_ms, keys, scores)
