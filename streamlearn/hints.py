"""Hints: completes commands in texts for people with the application and the options of the verb that prints them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from streamlearn.errors import StreamlearnError

__all__ = ["Given", "completed", "with_hints"]

_COMMAND = re.compile(r"`streamlearn ([a-z][a-z-]*)((?: [^`]*)?)`")
_PLACEHOLDER = re.compile(r"(?<= )(?:APP|MODEL)(?= |$)")
# The user name and password of a URL: everything before its last @.
_USER = re.compile(r"(?<=://).*@")
# Verbs that name a model; they take the folder of an application in its place. Others take the folder alone.
_OF_MODELS = {
    "compact", "diff", "export", "gc", "import", "note", "promote", "release", "rewind", "rollback", "show",
    "verify", "versions",
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """What was given to a verb: the folder of an application or the name of a model, and options.

    `options` are of verbs that name a model, and `changes` of all verbs.
    """

    app: str = ""
    model: str = ""
    options: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The words that name the application or the model in verbs that take a model; empty if they are unknown."""
        app, model = shlex.quote(self.app), shlex.quote(self.model)
        if not self.app:
            return model if self.model else ""
        if self.model:
            return f"{model} --app {app}"
        # With a store, a folder would be taken for the name of a model.
        return f"--app {app}" if "--store" in self.options or os.environ.get("STREAMLEARN_STORE") else app

    @property
    def tail(self) -> str:
        """The options that a command on a model ends with, after a space."""
        return "".join(f" {shlex.quote(_USER.sub('***@', word))}" for word in (*self.options, *self.changes))

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Given:
        """Collect it from the parameters of a verb."""
        words, app = parameters.get("words") or [], parameters.get("app")
        name = parameters.get("name") if "store" in parameters else None
        model = name or (words[0] if words and not str(words[0]).isdigit() else "")
        options = [(f"--{key}", parameters.get(key)) for key in ("store", "registry")]
        return cls(
            "" if app is None else str(app),
            str(model or ""),
            tuple(word for name, value in options if value for word in (name, str(value))),
            tuple(word for change in parameters.get("set_") or () for word in ("--set", change)),
        )


def completed(text: str, given: Given) -> str:
    """Return a text whose commands, in backquotes, name the application or model and have the given options.

    Passwords in URLs are not shown.

    Examples:
        >>> completed("see `streamlearn versions`; `streamlearn topics APP --create 4`", Given(app="my shop"))
        "see `streamlearn versions 'my shop'`; `streamlearn topics 'my shop' --create 4`"
        >>> completed("`streamlearn doctor --app APP`", Given(app="shop", changes=("--set", "up.nodes=2")))
        '`streamlearn doctor --app shop --set up.nodes=2`'
        >>> completed("`streamlearn rewind MODEL --to 3`", Given(model="shop", options=("--store", "file:///versions")))
        '`streamlearn rewind shop --to 3 --store file:///versions`'
        >>> completed("`streamlearn up APP`", Given(model="shop"))
        '`streamlearn up APP`'
    """
    return _COMMAND.sub(lambda found: _command(found[1], found[2], given), text)


def _command(verb: str, rest: str, given: Given) -> str:
    is_of_model, app = verb in _OF_MODELS, shlex.quote(given.app) if given.app else ""
    place = given.place if is_of_model else app
    if not place or "--help" in rest:
        return f"`streamlearn {verb}{rest}`"
    if "--app APP" in rest:
        rest = rest.replace("--app APP", f"--app {app}")
    elif _PLACEHOLDER.search(rest):
        rest = _PLACEHOLDER.sub(lambda _: place, rest)
    elif is_of_model and not rest.startswith(f" {place}"):
        rest = f" {place}{rest}"
    # A schema depends on no setting.
    tail = given.tail if is_of_model else Given(changes=given.changes).tail if verb != "schema" else ""
    return f"`streamlearn {verb}{rest}{tail}`"


def with_hints(verb: Callable[..., None]) -> Callable[..., None]:
    """Complete the commands in the help of errors that a verb raises."""

    @wraps(verb)
    def called(*args: Any, **given: Any) -> None:
        try:
            verb(*args, **given)
        except StreamlearnError as error:
            error.help = completed(error.help, Given.of(given))
            raise

    return called
