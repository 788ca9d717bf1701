"""Api: the paths of the console and their answers: it takes a head and a body, and returns an answer. No sockets."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files

import msgspec

from streamlearn.console.answer import Answer, json_answer, refusal
from streamlearn.console.guard import Guard
from streamlearn.console.moves import MOVES, make_move
from streamlearn.console.watch import Watch
from streamlearn.errors import MoveRefused, StoreUnreachable, StreamlearnError, UsageError
from streamlearn.hints import Given, completed
from streamlearn.settings.console import ConsoleSettings
from streamlearn.struct_decoder import from_json
from streamlearn.versions import History, Known
from streamlearn.versions.format.log import read_manifest
from streamlearn.versions.format.verdict import read_verdict
from streamlearn.versions.format.version_note import read_notes
from streamlearn.versions.pointer.facts import Facts, file_facts, manifest_facts
from streamlearn.versions.pointer.model import Model

__all__ = ["Api", "Route"]

_LOG = logging.getLogger(__name__)
_LOOK_WAIT_S = 5.0
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class Route:
    """A request whose head was accepted: the function that answers its body, and whether it has one."""

    answer: Callable[[bytes], Answer]
    has_body: bool = False


class Api:
    """The paths of one console."""

    def __init__(self, model: Model, watch: Watch, guard: Guard, settings: ConsoleSettings, given: Given) -> None:
        self._model, self._watch, self._guard, self._settings = model, watch, guard, settings
        self._given = given
        self._pages = _read_pages()

    def route(self, method: str, path: str, headers: Mapping[str, str]) -> Route | Answer:
        """Return the route of a request, or why it is refused, before its body is read.

        `path` has no query, and the names of `headers` are in lower case.
        """
        refused = self._guard.refuse_visit(headers)
        if refused is not None:
            return refused
        if path in self._pages:
            return _only("GET", method) or self._page(path, headers)
        move, version = path.removeprefix("/api/"), _version(path)
        if path == "/api/state" or version is not None:
            refused = _only("GET", method) or self._guard.refuse_look(headers)
            read = self._state if version is None else partial(self._details, version)
            return refused or Route(lambda _: read())
        if move in MOVES and path != move:
            refused = _only("POST", method) or self._guard.refuse_move(headers)
            return refused or Route(partial(self._move, move), has_body=True)
        return refusal(404, f"nothing is served at {path[:200]!r}", "the page is at /, its state at /api/state")

    def _page(self, path: str, headers: Mapping[str, str]) -> Answer | Route:
        page = self._pages[path]
        if headers.get("if-none-match") == page.headers["ETag"]:
            return Answer(304, b"", page.kind, page.headers, is_static=True)
        return page

    def _state(self) -> Answer:
        seen = self._watch.seen(_LOOK_WAIT_S)
        reply = {
            "now_ms": time.time_ns() // 1_000_000,
            "refresh_s": self._settings.refresh_s,
            "may_move": self._guard.token is not None,
            "error": seen.error,
            "help": completed(seen.help, self._given),
            "state": msgspec.Raw(seen.state),
        }
        return json_answer(200, reply)

    def _details(self, number: int) -> Answer:
        gathered = self._watch.seen(_LOOK_WAIT_S).found
        known = () if gathered is None else gathered.known
        version = next((version for version in known if version.version == number), None)
        if version is None:
            return refusal(404, f"version {number} does not exist", "/api/state lists the existing versions")
        try:
            return json_answer(200, self._details_of(version))
        except StreamlearnError as error:
            return self._refusal(503, error)

    def _details_of(self, version: Known) -> Facts:
        """Read the manifest and the verdict of a version from the store; they are not cached."""
        store = self._model.store
        folder = History(store, self._model.name).folder(version.ref)
        manifest, verdict = read_manifest(store, folder), read_verdict(store, folder)
        # A version may have tens of thousands of files; the page shows their sums.
        facts = manifest_facts(manifest, verdict, read_notes(store, folder)) | {"files": file_facts(manifest)}
        return facts | {"version": version.version, "folder": f"{store.url}/{folder}", "sha256": version.ref.sha256}

    def _move(self, what: str, body: bytes) -> Answer:
        try:
            move = from_json(body, MOVES[what])
        except msgspec.DecodeError as error:
            return refusal(
                400, f"the body is not a valid {what}: {error}", 'see "The console" in the documentation for its fields'
            )
        try:
            facts = make_move(self._model, what, move, self._settings.move_wait_s)
        except UsageError as error:
            return self._refusal(400, error)
        except MoveRefused as error:
            return self._refusal(409, error)
        except StreamlearnError as error:
            done = "the request may be written" if what == "rewind" else "the pointer may have moved"
            unsure = f"; {done} anyway" if isinstance(error, StoreUnreachable) else ""
            return self._refusal(503, error, unsure)
        finally:
            self._watch.look()
        at = f"the pointer is at {facts['active']}" if "active" in facts else facts["lines"][0]
        _LOG.info("%s by %s: %s", what, move.who, at, extra={"seq": facts["seq"]})
        return json_answer(200, facts)

    def _refusal(self, status: int, error: StreamlearnError, more: str = "") -> Answer:
        return refusal(status, f"{error.message}{more}", completed(error.help, self._given))


def _read_pages() -> dict[str, Answer]:
    """Read the files of the page once, by request path: a request's path never becomes a path on disk."""
    pages = {}
    for file in files("streamlearn.console").joinpath("page").iterdir():
        kind = _KINDS.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            data = file.read_bytes()
            etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
            pages[f"/{file.name}"] = Answer(200, data, kind, {"ETag": etag}, is_static=True)
    pages["/"] = pages["/index.html"]
    return pages


def _only(allowed: str, method: str) -> Answer | None:
    if method == allowed:
        return None
    return refusal(405, f"{method[:20]} is not allowed here", f"use {allowed}", allow=allowed)


def _version(path: str) -> int | None:
    """Return the version that a path names."""
    number = path.removeprefix("/api/versions/")
    is_version = path != number and number.isascii() and number.isdecimal() and len(number) <= 12
    return int(number) if is_version else None
