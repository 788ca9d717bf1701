"""Api: what is at each path, and what it answers: a head and a body come in, an answer goes out. It knows no socket."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from streamlearn.console.answer import Answer, json_answer, refusal
from streamlearn.console.details import details_of
from streamlearn.console.guard import Guard
from streamlearn.console.moves import MOVES, make_move
from streamlearn.console.pages import read_pages
from streamlearn.console.watch import Watch
from streamlearn.errors import MoveRefused, StoreUnreachable, StreamlearnError, UsageError
from streamlearn.settings.console import ConsoleSettings
from streamlearn.struct_decoder import from_json
from streamlearn.versions.pointer.model import Model

__all__ = ["Api", "Route"]

_LOG = logging.getLogger(__name__)
_LOOK_WAIT_S = 5.0


@dataclass(frozen=True)
class Route:
    """What a request has come to, as far as its head says.

    Attributes:
        answer: What answers it, given its body.
        has_body: Whether it has one.
    """

    answer: Callable[[bytes], Answer]
    has_body: bool = False


class Api:
    """The paths of one console.

    Args:
        model: Whose versions.
        watch: What looks at it.
        guard: Who may ask for what.
        settings: Limits.
    """

    def __init__(self, model: Model, watch: Watch, guard: Guard, settings: ConsoleSettings) -> None:
        self._model, self._watch, self._guard, self._settings = model, watch, guard, settings
        self._pages = read_pages()

    def route(self, method: str, path: str, headers: Mapping[str, str]) -> Route | Answer:
        """What answers a request, or why it is refused, before its body is read.

        Args:
            method: Its method.
            path: Its path, without a query.
            headers: Its headers, by names in lower case.
        """
        refused = self._guard.refuse_visit(headers)
        if refused is not None:
            return refused
        if path in self._pages:
            return self._allowed(method, "GET") or self._page(path, headers)
        what = path.removeprefix("/api/")
        if path == "/api/state" or _version(path) is not None:
            refused = self._allowed(method, "GET") or self._guard.refuse_look(headers)
            told = self._state if path == "/api/state" else partial(self._details, _version(path) or 0)
            return refused or Route(lambda _: told())
        if what in MOVES and path != what:
            refused = self._allowed(method, "POST") or self._guard.refuse_move(headers)
            return refused or Route(partial(self._move, what), has_body=True)
        return refusal(404, f"nothing is served at {path[:200]!r}", "the page is at /, its state at /api/state")

    def _allowed(self, method: str, only: str) -> Answer | None:
        if method == only:
            return None
        return refusal(405, f"{method[:20]} is not allowed here", f"use {only}", allow=only)

    def _page(self, path: str, headers: Mapping[str, str]) -> Answer | Route:
        page = self._pages[path]
        if headers.get("if-none-match") == page.headers["ETag"]:
            return Answer(304, b"", page.kind, page.headers, is_static=True)
        return page

    def _state(self) -> Answer:
        seen = self._watch.seen(_LOOK_WAIT_S)
        around = {
            "now_ms": time.time_ns() // 1_000_000,
            "refresh_s": self._settings.refresh_s,
            "may_move": self._guard.token is not None,
            "error": seen.error,
            "help": seen.help,
            "state": msgspec.Raw(seen.state),
        }
        return json_answer(200, around)

    def _details(self, version: int) -> Answer:
        found = self._watch.seen(_LOOK_WAIT_S).found
        one = next((one for one in found.known if one.version == version), None) if found is not None else None
        if one is None:
            return refusal(404, f"version {version} does not exist", "/api/state lists the existing versions")
        try:
            return json_answer(200, details_of(self._model.store, self._model.name, one))
        except StreamlearnError as error:
            return refusal(503, error.message, error.help)

    def _move(self, what: str, body: bytes) -> Answer:
        try:
            asked = from_json(body, MOVES[what])
        except msgspec.DecodeError as error:
            return refusal(
                400, f"the body is not a valid {what}: {error}", "see docs/operating/console.md for its fields"
            )
        try:
            done = make_move(self._model, what, asked, self._settings.move_wait_s)
        except UsageError as error:
            return refusal(400, error.message, error.help)
        except MoveRefused as error:
            return refusal(409, error.message, error.help)
        except StreamlearnError as error:
            unsure = isinstance(error, StoreUnreachable)
            said = f"{error.message}; the pointer may have moved anyway" if unsure else error.message
            return refusal(503, said, error.help)
        finally:
            self._watch.look()
        _LOG.info("%s by %s: the pointer is at %s", what, asked.who, done["active"], extra={"seq": done["seq"]})
        return json_answer(200, done)


def _version(path: str) -> int | None:
    """The version that a path names."""
    number = path.removeprefix("/api/versions/")
    is_one = path != number and number.isascii() and number.isdecimal() and len(number) <= 12
    return int(number) if is_one else None
