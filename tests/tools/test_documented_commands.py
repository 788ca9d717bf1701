"""Commands of the documentation are accepted by the command line as they stand; none of them is run."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from streamlearn.cli.main import cli

ROOT = Path(__file__).parents[2]
# Where a command of the shell ends.
_ENDS = re.compile(r"^(\||\|\||&|&&|;|[12]?>{1,2}(&[12])?.*|<.*)$")
_BLOCK = re.compile(r"^ *```(?:sh|console|bash)\n(.*?)^ *```", flags=re.M | re.S)
_SPAN = re.compile(r"`(streamlearn [a-z][^`]*)`")
COMMANDS: Any = get_command(cli)


def pages() -> list[Path]:
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.split()]


def words(line: str) -> list[str]:
    """What follows `streamlearn` in a line of the shell, or nothing."""
    try:
        found = shlex.split(line.strip().removeprefix("$ "), comments=True)
    except ValueError:
        return []  # a line of something that goes over several
    while found and re.match(r"[A-Z_]+=", found[0]):
        found.pop(0)
    if found[:1] != ["streamlearn"]:
        return []
    ends = [at for at, word in enumerate(found) if _ENDS.match(word)]
    return found[1 : ends[0] if ends else None]


def told() -> Iterator[tuple[str, list[str]]]:
    """Each command of a block, with where it stands."""
    for page in pages():
        for block in _BLOCK.findall(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                if found := words(line):
                    yield f"{page.relative_to(ROOT)}: {line.strip()}", found


def named() -> Iterator[tuple[str, list[str]]]:
    """Each command within a sentence, where places are held by words such as APP."""
    for page in pages():
        for span in _SPAN.findall(re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.S)):
            if found := words(" ".join(span.split())):
                yield f"{page.relative_to(ROOT)}: {span}", found


def accept(given: list[str]) -> None:
    """Read a command line as the command would, up to where it begins to do something."""
    command, context, left = COMMANDS, None, list(given)
    while True:
        context = command.make_context(command.name, left, parent=context)
        left = [*context._protected_args, *context.args] if hasattr(command, "commands") else []
        if not left:
            return
        _, command, left = command.resolve_command(context, left)


@pytest.mark.parametrize(("where", "given"), [pytest.param(*one, id=one[0]) for one in told()])
def test_a_command_of_a_block_is_accepted(where: str, given: list[str]) -> None:
    if "--help" not in given and given != ["--version"]:
        accept(given)


@pytest.mark.parametrize(("where", "given"), [pytest.param(*one, id=one[0]) for one in named()])
def test_a_command_within_a_sentence_has_options_that_there_are(where: str, given: list[str]) -> None:
    command = COMMANDS
    for word in given:
        command = getattr(command, "commands", {}).get(word, command)
    options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
    default = getattr(command, "commands", {}).get("node")
    options |= {option for one in (default.params if default else ()) for option in one.opts}
    assert command is not COMMANDS or given[0].startswith("--"), f"{where}: no such command"
    assert not {word.partition("=")[0] for word in given if word.startswith("--")} - options, where


def test_there_are_commands_to_look_at() -> None:
    assert len(list(told())) > 50
    assert len(list(named())) > 50


@pytest.mark.parametrize(
    "line",
    [
        "streamlearn versions --appp shop",
        "streamlearn train",
        "streamlearn rollback shop --to now",
        "streamlearn tran shop",
    ],
)
def test_a_command_that_is_wrong_is_not_accepted(line: str) -> None:
    with pytest.raises(Exception, match=r"[Nn]o such|[Mm]issing|not a valid"):
        accept(words(line))
