"""DefaultVerb: a verb with verbs of its own beside it, told apart by the first word."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

__all__ = ["DefaultVerb"]


class DefaultVerb(TyperGroup):
    """`streamlearn VERB WORD ...` is the verb `WORD` beside it where there is one, and else the first, with all words.

    An application in a folder of such a name is given as `./WORD`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click: what begins with none of these verbs is for the first of them."""
        if not args or args[0] not in self.commands:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)
