"""The result of a move of the pointer, for people or as JSON, and the nodes that did not follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from streamlearn.cli.output.table import print_json, print_table
from streamlearn.cli.output.units import counted
from streamlearn.errors import PartlyDone

if TYPE_CHECKING:
    from streamlearn.versions.pointer.mover import Moved

__all__ = ["show_moved"]


def show_moved(moved: Moved, line: str, *, json: bool) -> None:
    """Print the result of a move; `line` states it for people.

    Raises:
        PartlyDone: A node did not confirm the move, or the registry could not be reached.
    """
    if json:
        from streamlearn.versions.pointer.facts import moved_facts

        print_json(moved_facts(moved))
    else:
        typer.echo(f"{line} (move {moved.pointer.seq}, in the store after {moved.store_ms:.1f} ms)")
        rows = [_row(ack.node, "acted", ack.ms, ack.version) for ack in moved.acted]
        rows += [_row(node.name, "silent", None, node.active) for node in moved.silent]
        rows += [_row(node.name, "starting", None, 0) for node in moved.starting]
        if rows:
            print_table(rows)
    if moved.said:
        message = f"the pointer moved, but nodes could not be asked whether they follow: {moved.said}"
        help = "nodes also read the store; see `streamlearn versions`; `--wait 0` does not wait for them"
        raise PartlyDone(message, help=help)
    if moved.silent:
        names = ", ".join(node.name for node in moved.silent)
        nodes = counted(len(moved.silent) + len(moved.acted), "node")
        message = f"{len(moved.silent)} of {nodes} did not confirm in time: {names}"
        raise PartlyDone(message, help="see their state in `streamlearn versions`; they follow when they are back")


def _row(node: str, state: str, ms: float | None, version: int) -> dict[str, Any]:
    return {"node": node, "state": state, "ms": None if ms is None else round(ms, 1), "serves": version or "-"}
