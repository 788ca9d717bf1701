"""The result of a move of the pointer, for people and for programs; and whether all nodes followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from streamlearn.cli.output.table import print_json, print_table
from streamlearn.cli.output.units import counted
from streamlearn.errors import PartlyDone

if TYPE_CHECKING:
    from streamlearn.versions.pointer.mover import Moved

__all__ = ["show_moved"]


def show_moved(moved: Moved, said: str, *, json: bool) -> None:
    """Print a move.

    Args:
        moved: Its result.
        said: The action, in one line.
        json: Whether it is for programs.

    Raises:
        PartlyDone: A node has not acted or could not be asked, or none is known.
    """
    if json:
        from streamlearn.versions.pointer.facts import moved_facts

        print_json(moved_facts(moved))
    else:
        typer.echo(f"{said} (move {moved.pointer.seq}, in the store after {moved.store_ms:.1f} ms)")
        rows = [_row(one.node, "acted", one.ms, one.version) for one in moved.acted]
        rows += [_row(one.name, "silent", None, one.active) for one in moved.silent]
        rows += [_row(one.name, "starting", None, 0) for one in moved.starting]
        if rows:
            print_table(rows)
    if moved.said:
        message = f"the pointer moved, but nodes could not be asked whether they follow: {moved.said}"
        help = "nodes also read the store; see `streamlearn versions`; `--wait 0` does not wait for them"
        raise PartlyDone(message, help=help)
    if moved.silent:
        names = ", ".join(one.name for one in moved.silent)
        asked = counted(len(moved.silent) + len(moved.acted), "node")
        message = f"{len(moved.silent)} of {asked} did not confirm in time: {names}"
        raise PartlyDone(message, help="see their state in `streamlearn versions`; they follow when they are back")


def _row(node: str, state: str, ms: float | None, version: int) -> dict[str, Any]:
    return {"node": node, "state": state, "ms": None if ms is None else round(ms, 1), "serves": version or "-"}
