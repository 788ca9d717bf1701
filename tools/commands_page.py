"""The page of all commands, generated from the command line. The exit statuses of commands are listed here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from streamlearn.cli.main import cli

__all__ = ["ENDS", "HEAD", "commands_page", "every_command"]

_KINDS = dict.fromkeys(("integer", "integer range", "int", "int range", "float", "float range"), "N") | {"path": "PATH"}
_NOT_FOLLOWED = (3, "the pointer moved, but a node did not follow in time or could not be asked, or no node is known")
_MANY = "a larger share of events than `ingest.dead_share_max` became dead letters, or most did and no sample was made"
_DEAD = (3, f"the command is done, but {_MANY}")
# Exit statuses of commands beyond those at the head of the page.
ENDS: dict[str, tuple[tuple[int, str], ...]] = {
    "bench-serve": ((1, "no request was answered, or no rate met the target"), (3, "a search was stopped")),
    "doctor": ((1, "something is wrong; missing optional components do not count"),),
    "evaluate": ((3, "it was stopped; complete passes are printed"),),
    "backfill": (_DEAD,),
    "ingest": ((1, "it cannot continue, and the error says why"), _DEAD),
    "forget": ((3, "the deletion is asked for, but a version or a node still has the rows"),),
    "promote": (_NOT_FOLLOWED,),
    "ps stats": ((3, "a shard did not answer; the error names it"),),
    "release": (_NOT_FOLLOWED,),
    "replay": ((3, "it was stopped before the end of the history"),),
    "rollback": (_NOT_FOLLOWED,),
    "switch": ((3, "the switch is written, but a node has not followed it yet"),),
    "train": ((1, "it cannot continue, and the error says why; you can safely start it again"),),
    "up": (
        (1, "`up` gave up on a process, or a service prevents the start"),
        (3, "it stopped, but some processes had to be killed or failed while stopping"),
    ),
    "verify": ((1, "a defect was found; with `--finite` also numbers that are NaN or infinite"),),
}
HEAD = """# Commands

All commands, with the text of `streamlearn VERB --help`. APP is the folder of an application. MODEL is the name that
its `app.py` gives it. Verbs on versions accept either: `--app APP` takes the store and the registry from its
`app.toml`. With MODEL, name them with `--store` and `--registry`, or in STREAMLEARN_STORE and STREAMLEARN_REGISTRY.

| status | when |
|---|---|
| 0 | success; also after SIGTERM or Ctrl-C, for commands that run until they are stopped |
| 1 | failure; one line says what happened, and `help:` says what to do |
| 2 | invalid request: an option, a setting or an application contradicts itself |
| 3 | partial success; the error names the part that is not done |

`--json` prints one JSON document on stdout instead of tables; messages for people go to stderr. `--set` changes a
[setting](settings.md) for one run. `streamlearn --version` prints the release, and
`streamlearn --install-completion` installs shell completion of verbs and options.

<!-- written by python -m tools.write_docs -->
"""


def commands_page() -> str:
    """Return the text of docs/commands.md."""
    commands = dict(every_command())
    lines = [HEAD, "| command | what it does |", "|---|---|"]
    for name, command in commands.items():
        lines.append(f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(_paragraphs(command)[0])} |")
    for name, command in commands.items():
        lines += ["", f"## {name}", "", "```text", _usage(name, command), "```", ""]
        lines += [line for paragraph in _paragraphs(command) for line in (paragraph, "")]
        lines += _parameters(command)
        if name in ENDS:
            lines += ["", *(f"- status {status}: {when}" for status, when in ENDS[name])]
    return "\n".join(lines) + "\n"


def every_command() -> Iterator[tuple[str, Any]]:
    """Yield each command with its words: groups that are commands themselves, then the commands in them."""
    for name, command in sorted(get_command(cli).commands.items()):  # type: ignore[attr-defined]
        members = dict(getattr(command, "commands", {}))
        default = members.pop("node", None) if name == "serve" else None
        yield name, default or command
        for member_name, member in sorted(members.items()):
            yield f"{name} {member_name}", member


def _paragraphs(command: Any) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n")]


def _usage(name: str, command: Any) -> str:
    words = [_shape(parameter) for parameter in command.params if parameter.param_type_name == "argument"]
    return " ".join(["streamlearn", name, "[OPTIONS]", *words])


def _shape(argument: Any) -> str:
    """Return an argument as the usage line shows it."""
    shape = argument.metavar or argument.name.upper()
    return shape if argument.required or shape.startswith("[") else f"[{shape}]"


def _parameters(command: Any) -> list[str]:
    rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
    return ["| argument or option | default | what it is |", "|---|---|---|", *rows] if rows else []


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = _shape(parameter)
    else:
        takes = "" if parameter.is_flag else f" {parameter.metavar or _KINDS.get(parameter.type.name, 'TEXT')}"
        name = f"{', '.join([*parameter.opts, *parameter.secondary_opts])}{takes}"
    return f"| {_code(name)} | {_default(parameter)} | {_cell(parameter.help or '')}{_bounds(parameter.type)} |"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "needed"
    if isinstance(parameter.show_default, str):
        return _cell(parameter.show_default)
    if parameter.default is None or parameter.default is False or parameter.default == "":
        return ""
    return f"`{parameter.default}`"


def _bounds(kind: Any) -> str:
    """Return the bounds of a number in brackets, if it has any."""
    least, most = getattr(kind, "min", None), getattr(kind, "max", None)
    bounds = [f"at least {least}"] * (least is not None) + [f"at most {most}"] * (most is not None)
    return f" ({', '.join(bounds)})" if bounds else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{_cell(text)}`"
