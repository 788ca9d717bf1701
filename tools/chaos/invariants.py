"""Invariants: what must hold when all is over, whatever befell the loop. Each names what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.errors import StreamlearnError
from streamlearn.serving.infer import InferAnswer
from streamlearn.versions.format.log import read_manifest
from tools.chaos.ground import Ground
from tools.chaos.heard import ask, differ
from tools.chaos.late import LateNode
from tools.chaos.settled import UNSETTLED, Settled, mark_of
from tools.demo import Board

__all__ = ["answers", "chosen", "learned", "misnamed", "named", "verified"]

_OLDER, _NAMED = 5, 5


def learned(board: Board, labels: Sequence[str], settled: Settled, metrics: dict[str, float]) -> Iterator[str]:
    """Whether all that was shown is in the samples, and each label was learned once, as it was told.

    Args:
        board: What was shown, and what people were told to have done.
        labels: The names of the labels.
        settled: What the samples say.
        metrics: Of the newest version.
    """
    keys, done = board.keys(), board.rows().done
    marks = np.fromiter((mark_of(*key) for key in keys), np.int64, len(keys))
    there, first, times = np.unique(settled.rows, return_index=True, return_counts=True)
    is_there = np.isin(marks, there)
    yield from _named(keys, ~is_there, "rows were shown, and are in no sample")
    yield from _named(keys, np.isin(marks, there[times > 1]), "rows are in the samples under more than one identity")
    strange = [*settled.strange, *("one that was not shown" for _ in range(int((~np.isin(there, marks)).sum())))]
    if strange:
        yield f"{len(strange):,} rows of samples are of nothing that was shown: {', '.join(strange[:_NAMED])}"
    values = np.full(done.shape, UNSETTLED, np.int8)
    values[is_there] = settled.values[first[np.searchsorted(there, marks[is_there])]]
    for at, label in enumerate(labels):
        said, is_settled = values[:, at], values[:, at] != UNSETTLED
        yield from _named(keys, is_there & ~is_settled, f"rows have no {label} that is settled")
        yield from _named(keys, is_settled & (said < done[:, at]), f"rows have a {label} that nobody learned of")
        yield from _named(keys, is_settled & (said > done[:, at]), f"rows have a {label} that nobody did")
    if round(metrics["labels_learned"]) != settled.labels:
        yield f"{settled.labels:,} labels are settled, and {metrics['labels_learned']:,.0f} were learned"
    if round(metrics["labels_corrected"]) != settled.corrected:
        yield f"{settled.corrected:,} labels are to be corrected, and {metrics['labels_corrected']:,.0f} were"


def _named(keys: Sequence[tuple[str, Any]], are_bad: npt.NDArray[np.bool_], what: str) -> Iterator[str]:
    """How many rows there are, and the first few of them."""
    bad = np.flatnonzero(are_bad)
    if len(bad):
        names = (f"item {keys[row][1]} of request {keys[row][0]}" for row in bad[:_NAMED].tolist())
        yield f"{len(bad):,} {what}: {', '.join(names)}"


def verified(ground: Ground) -> Iterator[str]:
    """Whether every version is whole."""
    try:
        ground.loop.verb("verify")
    except StreamlearnError as error:
        yield error.message


def named(ground: Ground) -> Iterator[str]:
    """Whether every version has the application's labels by name and in order, and answered for each of them."""
    labels, model = [label.name for label in ground.folder.app.labels], ground.loop.model
    for known in ground.loop.versions():
        manifest = read_manifest(model.store, model.history.folder(known.ref))
        answered = [list(answer.outputs) for _, answer in ground.heard.of(known.version)]
        yield from misnamed(known.version, labels, list(manifest.labels or ()), answered)


def misnamed(
    version: int, labels: Sequence[str], written: Sequence[str], answered: Iterable[Sequence[str]]
) -> Iterator[str]:
    """Where a version has other labels than the application, or in another order.

    Args:
        version: Which one.
        labels: The application's.
        written: Those in its manifest.
        answered: The names of outputs in answers.
    """
    if list(written) != list(labels):
        yield f"version {version} was written with the labels {list(written)}, and not {list(labels)}"
    for names in answered:
        if [name for name in names if name in labels] != list(labels):
            yield f"version {version} answered with {list(names)}, and not with every one of {list(labels)}"


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
