"""Each command that a text of the product prints is one that the command line takes, with the options as printed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import typer

import streamlearn
from streamlearn.cli.main import cli
from streamlearn.hints import Given, completed
from streamlearn.versions import PointerLog
from streamlearn.versions.pointer.announcer import Announcer
from streamlearn.versions.pointer.moves import hold
from tests.cli.place import APP, Place, Verb, commands_in
from tests.versions.history import MODEL

PACKAGE = Path(streamlearn.__file__).parent
# Values of placeholders that only a reader knows, and of expressions in the text.
VALUES = {"VERSION": "4", "N": "4", "%s": "shop", "%d": "4"}
# Sentences that only name a command, such as "another `streamlearn up`".
NAMES = {
    "another `streamlearn up` (pid",
    "`streamlearn up` needs Linux",
    "`streamlearn rollback`",
    "that `streamlearn train` wrote",
    "`streamlearn export`",
    "`streamlearn import`",
}
# The class of all complaints about a command line, in the parser that typer has of its own.
UsageError: Any = typer.BadParameter.__mro__[1]
# Commands that end by themselves, in the order in which each finds what it needs; the others are only parsed.
RUN = ("versions", "verify", "gc", "schema", "topics", "peek", "doctor", "rewind", "release", "rollback", "promote")
# The options that a verb was given.
STORE = ("--store", "s3://ada:secret@versions", "--registry", "none")
GIVENS = {
    "folder": Given(app="my shop", changes=("--set", "topics.reach_s=5")),
    "model": Given(model="ctr", options=STORE),
    "both": Given(app="my shop", model="ctr", options=STORE, changes=("--set", "topics.reach_s=5")),
}


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file that are no docstrings; an expression in a text stands as its value, or as a number."""
    tree = ast.parse(file.read_text())
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield node.lineno, "".join(_part(part) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def _part(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        words = ast.unparse(part.value)
        return "shop" if "app" in words else "impression" if "schema" in words else VALUES["VERSION"]
    return str(part.value) if isinstance(part, ast.Constant) else ""


def printed() -> Iterator[tuple[str, str]]:
    """All texts with commands, and their places."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for line, text in texts(file):
            if "`streamlearn " in text and file.name != "hints.py" and not any(name in text for name in NAMES):
                yield f"{file.relative_to(PACKAGE)}:{line}", text


def filled(command: list[str]) -> list[str]:
    """A command with what its reader puts in for placeholders."""
    return [VALUES.get(word, word) for word in command]


@cache
def parser() -> Any:
    """The program's own; to make it takes longer than to use it."""
    return typer.main.get_command(cli)


def reach(command: list[str]) -> Any:
    """Parse a command line as the program does, and return what its command was given."""
    words = filled(command)
    reached = parser()
    context = reached.make_context("streamlearn", words)
    # A group such as `ps` may be a command of its own.
    while hasattr(reached, "resolve_command") and (words := [*context._protected_args, *context.args]):
        name, reached, words = reached.resolve_command(context, words)
        context = reached.make_context(name, words, parent=context)
    return context.params


PRINTED = dict(printed())


@pytest.mark.parametrize("given", GIVENS.values(), ids=GIVENS.keys())
@pytest.mark.parametrize("place", PRINTED)
def test_a_printed_command_is_taken_as_it_is_printed(place: str, given: Given) -> None:
    for command in commands_in(completed(PRINTED[place], given)):
        if given.app:
            assert not {"APP", "MODEL"} & set(command), "a placeholder that the verb knows"
        elif "MODEL" in command:
            pytest.fail("a placeholder that the verb knows")
        assert "secret" not in str(command)
        if command[-1] != "--help":
            reach(command)


def test_commands_of_all_kinds_are_found() -> None:
    verbs = {command[0] for text in PRINTED.values() for command in commands_in(text)}
    assert verbs >= {
        "backfill", "doctor", "gc", "ingest", "peek", "promote", "release", "rewind", "rollback", "schema", "serve",
        "topics", "train", "up", "verify", "versions",
    }  # fmt: skip


def test_a_printed_command_does_what_it_is_printed_for(
    place: Place, ended: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, topics = place.folder / "my shop", place.folder / "my topics"
    monkeypatch.chdir(place.folder)
    for name in (folder, Path("shop")):
        name.mkdir()
        (name / "app.py").write_text(APP.format(name=MODEL))
    given = Given(app=str(folder), changes=("--set", f"topics.root=file://{topics}"))
    PointerLog(place.store, MODEL).move(partial(hold, known=place.known), by="test")
    Announcer(place.store, place.registry).keep_up()
    found = {tuple(filled(command)) for text in PRINTED.values() for command in commands_in(completed(text, given))}
    # A repair needs damage: test_hints.py has it.
    todo = [command for command in found if command[0] in RUN and not {"--help", "--mend-pointer"} & set(command)]
    assert {command[0] for command in todo} == set(RUN)
    for command in sorted(todo, key=lambda words: (RUN.index(words[0]), "1" in words, "--delete" in words, words)):
        more = ("--wait", 0) if command[0] in ("release", "rollback", "promote") else ()
        done = ended(*command, *more)
        if "--delete" in command and "--yes" not in command:
            assert (done.status, "add --yes" in done.err) == (2, True), (command, done)
        elif command[0] == "doctor":
            assert "wrong: newest version" in done.out, "it was not this application that wrote it"
        else:
            assert done.status == 0, (command, done)
    assert (place.pointer.active_version, place.pointer.held) == (4, True)


def test_a_command_that_would_be_refused_is_noticed() -> None:
    with pytest.raises(UsageError, match="No such command"):
        reach(["turn-back", "shop"])
    with pytest.raises(UsageError, match="No such option"):
        reach(["rewind", "shop", "--version", "3"])
    with pytest.raises(UsageError, match="is not a valid int"):
        reach(["rewind", "shop", "--to", "four"])
