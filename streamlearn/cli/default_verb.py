"""DefaultVerb: a verb that has sub-verbs and also runs without one."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

__all__ = ["DefaultVerb"]


class DefaultVerb(TyperGroup):
    """Runs the sub-verb that the first word names; without such a word, the first sub-verb gets all words.

    An application in a folder with the name of a sub-verb is given as `./NAME`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the name of the first sub-verb if none is given."""
        if not args or args[0] not in self.commands:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)
