"""Invariants: what must hold when all is over, whatever befell the loop. Each names what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from streamlearn.demo import Board
from streamlearn.errors import StreamlearnError
from streamlearn.serving.infer import InferAnswer
from tools.chaos.ground import Ground
from tools.chaos.heard import ask, differ
from tools.chaos.late import LateNode
from tools.chaos.settled import Settled

__all__ = ["answers", "chosen", "learned", "verified"]

_OLDER = 5


def learned(board: Board, labels: int, settled: Settled, metrics: dict[str, float]) -> Iterator[str]:
    """Whether all that was shown is in the samples, and each label was learned once.

    Args:
        board: What was shown.
        labels: How many labels a row has.
        settled: What the samples say.
        metrics: Of the newest version.
    """
    if settled.rows != len(board):
        yield f"{len(board):,} rows were shown, and {settled.rows:,} are in the samples"
    if settled.labels != len(board) * labels:
        yield f"{len(board) * labels:,} labels are to be settled, and {settled.labels:,} are"
    if round(metrics["labels_learned"]) != settled.labels:
        yield f"{settled.labels:,} labels are settled, and {metrics['labels_learned']:,.0f} were learned"
    if round(metrics["labels_corrected"]) != settled.corrected:
        yield f"{settled.corrected:,} labels are to be corrected, and {metrics['labels_corrected']:,.0f} were"


def verified(ground: Ground) -> Iterator[str]:
    """Whether every version is whole."""
    try:
        ground.loop.verb("verify")
    except StreamlearnError as error:
        yield error.message


def answers(ground: Ground, late: LateNode, told: Callable[[int], None]) -> Iterator[str]:
    """Whether what was answered on the way is what its version answers, made anew from the store, and on all nodes.

    The pointer is moved to some older versions, one after the other: the late node never served one of them.

    Args:
        ground: The loop.
        late: A node that has begun when all was over.
        told: Given how many replies of a version were compared.
    """
    others = [one for version in ground.heard.versions[-2:] for one, _ in ground.heard.of(version)]
    for version in chosen(ground.heard.versions, ground.active):
        if version != ground.active:
            try:
                ground.loop.verb("rollback", "--to", str(version), "--wait", "60", "--reason", "chaos looks at it")
            except StreamlearnError as error:
                yield f"version {version} cannot be gone back to: {error.message}"
                continue
        compared = 0
        # The newest one may have answered nobody before all was over.
        kept: list[tuple[bytes, InferAnswer | None]] = [*ground.heard.of(version)]
        for message, before in kept or [(one, None) for one in others]:
            try:
                anew = ask(late.address, message)
                if before is not None:
                    differ(before, anew, late.address)
                for address in ground.loop.nodes:
                    differ(anew, ask(address, message), address, exact=True)
                    compared += 1
            except StreamlearnError as error:
                yield error.message
        if not compared:
            yield f"no reply of version {version} was held against the store's"
        told(compared)


def chosen(versions: Sequence[int], newest: int) -> list[int]:
    """The newest version and some older ones, far apart, newest first.

    Examples:
        >>> chosen(range(1, 101), 100)
        [100, 80, 60, 40, 20, 1]
        >>> chosen([3, 4], 5)
        [5, 4, 3]
    """
    older = [one for one in versions if one < newest]
    step = max(1, len(older) // _OLDER)
    picked = sorted({*older[::-1][step - 1 :: step], *older[:1]}, reverse=True) if older else []
    return [newest, *picked[-_OLDER:]]
