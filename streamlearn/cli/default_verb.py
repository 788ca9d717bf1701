"""DefaultVerb: a verb that has sub-verbs and also runs without one."""

from __future__ import annotations

from copy import copy
from typing import Any

from typer.core import TyperGroup

__all__ = ["DefaultVerb"]

_IS_DEFAULT = f"{__name__}.is_default"


class DefaultVerb(TyperGroup):
    """Runs the sub-verb that the first word names; without such a word, the first sub-verb gets all words.

    An application in a folder with the name of a sub-verb is given as `./NAME`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the name of the first sub-verb if none is given."""
        ctx.meta[_IS_DEFAULT] = not args or args[0] not in self.commands
        if ctx.meta[_IS_DEFAULT]:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the sub-verb. The help of an inserted one does not show its name."""
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.meta[_IS_DEFAULT] and command is not None:
            command = copy(command)
            path = {"command_path": property(lambda inner: inner.parent.command_path)}
            command.context_class = type("UnnamedContext", (command.context_class,), path)
        return name, command, rest
