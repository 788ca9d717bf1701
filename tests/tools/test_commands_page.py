"""What the page of commands says beyond what the command line says itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.commands_page import ENDS, every_command

CLI = Path(__file__).parents[2] / "streamlearn" / "cli"


def partly() -> set[str]:
    """Modules of the command line that can end with 3."""
    files = [file for file in CLI.rglob("*.py") if file.stem != "main"]
    trees = {".".join(("streamlearn.cli", *_parts(file))): ast.parse(file.read_text()) for file in files}
    return {name for name, tree in trees.items() if any(map(_ends_partly, ast.walk(tree)))}


def _parts(file: Path) -> tuple[str, ...]:
    return file.relative_to(CLI).with_suffix("").parts


def _ends_partly(node: ast.AST) -> bool:
    named = node.exc if isinstance(node, ast.Raise) else None
    return named is not None and any(name in ast.unparse(named) for name in ("PartlyDone", "EXIT_PARTLY"))


def module_of(name: str, command: object) -> str:
    callback = getattr(command, "callback", None)
    assert callback is not None, name
    return str(callback.__module__)


def test_what_commands_end_with_is_said_of_commands_that_exist() -> None:
    assert set(ENDS) <= set(dict(every_command()))


def test_every_command_that_can_be_partly_done_says_so() -> None:
    ends, partial = partly(), {name for name, said in ENDS.items() if 3 in dict(said)}
    known = ("events.replay", "model.evaluate", "model.rollback", "run.ps", "bench.verb")
    assert {f"streamlearn.cli.{name}" for name in known} <= ends
    commands = dict(every_command())
    # These raise `PartlyDone`, or count what did not end well.
    raising = {"up", "ingest", "backfill"}
    assert {module_of(name, commands[name]) for name in partial - raising} == ends
    assert raising <= partial


@pytest.mark.parametrize("name", [name for name, _ in every_command()])
def test_every_option_of_every_command_says_what_it_is(name: str) -> None:
    silent = [one.name for one in dict(every_command())[name].params if one.name != "help" and not one.help]
    assert not silent
