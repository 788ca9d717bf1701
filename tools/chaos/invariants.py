"""Invariants: what must hold at the end of a run, after any faults. Each function yields the violations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.errors import StreamlearnError
from streamlearn.online import check_served
from streamlearn.serving.infer import InferAnswer
from streamlearn.versions.format.log import read_manifest
from streamlearn.versions.pointer.moves import taints_of
from tools.chaos.answer_log import ask, check_equal
from tools.chaos.late_node import LateNode
from tools.chaos.settled_labels import UNSETTLED, SettledLabels, row_id
from tools.chaos.target import Target
from tools.demo import Board
from tools.demo.loop import run_verb

__all__ = [
    "answer_violations",
    "column_violations",
    "label_violations",
    "lost_and_doubled",
    "sample_violations",
    "sampled_versions",
    "verify_violations",
    "wrong_labels",
]

_OLDER, _NAMED = 5, 5


def sample_violations(
    board: Board,
    labels: Sequence[str],
    settled: SettledLabels,
    metrics: dict[str, float],
    unavailable: Set[tuple[str, Any]] = frozenset(),
) -> Iterator[str]:
    """Check that each shown row is in the samples, and each label was learned once with the users' actions.

    Args:
        board: The shown rows, and the users' actions.
        labels: The names of the labels.
        settled: The labels in the samples.
        metrics: The metrics of the newest version.
        unavailable: Rows that were scored while the store of computed columns was away, and need not be learned.
    """
    keys, done = board.keys(), board.rows().done
    may_lack = np.array([key in unavailable for key in keys], np.bool_)
    ids = np.fromiter((row_id(*key) for key in keys), np.int64, len(keys))
    sample_ids, first, times = np.unique(settled.rows, return_index=True, return_counts=True)
    is_sampled = np.isin(ids, sample_ids)
    yield from _named(keys, ~is_sampled & ~may_lack, "rows were shown, and are in no sample")
    yield from _named(keys, np.isin(ids, sample_ids[times > 1]), "rows are in the samples under more than one identity")
    unknown = [*settled.unknown, *("one that was not shown" for _ in range(int((~np.isin(sample_ids, ids)).sum())))]
    if unknown:
        yield f"{len(unknown):,} rows of samples were never shown: {', '.join(unknown[:_NAMED])}"
    values = np.full(done.shape, UNSETTLED, np.int8)
    values[is_sampled] = settled.values[first[np.searchsorted(sample_ids, ids[is_sampled])]]
    for at, label in enumerate(labels):
        value, is_settled = values[:, at], values[:, at] != UNSETTLED
        yield from _named(keys, is_sampled & ~is_settled, f"rows have an unsettled {label}")
        yield from _named(keys, is_settled & (value < done[:, at]), f"rows lack a {label} that happened")
        yield from _named(keys, is_settled & (value > done[:, at]), f"rows have a {label} that did not happen")
    if round(metrics["labels_learned"]) != settled.labels:
        yield f"{settled.labels:,} labels are settled, and {metrics['labels_learned']:,.0f} were learned"
    if round(metrics["labels_corrected"]) != settled.corrected:
        yield f"{settled.corrected:,} labels need a correction, and {metrics['labels_corrected']:,.0f} were corrected"


def lost_and_doubled(
    board: Board, settled: SettledLabels, metrics: dict[str, float], unavailable: Set[tuple[str, Any]] = frozenset()
) -> tuple[int, int]:
    """Return how many rows and labels were lost, and how many were there or learned twice.

    The arguments are those of `sample_violations`, which names them.
    """
    keys = board.keys()
    must_be_there = [row_id(*key) for key in keys if key not in unavailable]
    sample_ids, times = np.unique(settled.rows, return_counts=True)
    missing = len(must_be_there) - int(np.isin(must_be_there, sample_ids).sum())
    more = round(metrics["labels_learned"]) - settled.labels
    return missing + max(0, -more), int((times - 1).sum()) + max(0, more)


def _named(keys: Sequence[tuple[str, Any]], are_bad: npt.NDArray[np.bool_], violation: str) -> Iterator[str]:
    """Yield the number of bad rows and the names of the first, if there are any."""
    bad = np.flatnonzero(are_bad)
    if len(bad):
        names = (f"item {keys[row][1]} of request {keys[row][0]}" for row in bad[:_NAMED].tolist())
        yield f"{len(bad):,} {violation}: {', '.join(names)}"


def column_violations(target: Target) -> Iterator[str]:
    """Check that computed columns were served as their interactions say."""
    checked = check_served(target.folder, 0)
    if checked.differences or not checked.values:
        yield f"{checked.differences} of {checked.values:,} computed values differ: {'; '.join(checked.examples)}"


def verify_violations(target: Target) -> Iterator[str]:
    """Check that every version verifies; and of the newest, that its vectors are what its rows and weights make."""
    try:
        target.loop.verb("verify")
        if target.folder.app.retrieval:
            run_verb("verify", "--app", str(target.folder.folder), "--store", target.loop.model.store_url, "--derived")
    except StreamlearnError as error:
        yield error.message


def label_violations(target: Target) -> Iterator[str]:
    """Check that every version has the application's labels in order, and answered with each of them."""
    labels, model = [label.name for label in target.folder.app.labels], target.loop.model
    for known in target.loop.versions():
        manifest = read_manifest(model.store, model.history.folder(known.ref))
        answered = [list(answer.outputs) for _, answer in target.answer_log.of(known.version)]
        yield from wrong_labels(known.version, labels, list(manifest.labels or ()), answered)


def wrong_labels(
    version: int, labels: Sequence[str], written: Sequence[str], answered: Iterable[Sequence[str]]
) -> Iterator[str]:
    """Yield where a version has other labels than the application, or another order.

    `written` are the labels in the manifest; `answered` are the names of the outputs in answers.
    """
    if list(written) != list(labels):
        yield f"version {version} was written with the labels {list(written)}, and not {list(labels)}"
    for names in answered:
        if [name for name in names if name in labels] != list(labels):
            yield f"version {version} answered with {list(names)}, and not with every one of {list(labels)}"


def answer_violations(target: Target, late_node: LateNode, on_compared: Callable[[int], None]) -> Iterator[str]:
    """Check that answers during the run equal those of the same versions now, loaded from the store, on all nodes.

    The pointer moves to some older versions that are not tainted, one after the other, which the late node never served
    before.
    `late_node` must have started after the end of the load. `on_compared` gets the number of compared replies of each
    version.
    """
    recent = [request for version in target.answer_log.versions[-2:] for request, _ in target.answer_log.of(version)]
    tainted = taints_of(target.loop.model.pointer, target.loop.versions())
    clean = [version for version in target.answer_log.versions if version not in tainted]
    for version in sampled_versions(clean, target.active):
        if version != target.active:
            try:
                target.loop.verb("rollback", "--to", str(version), "--wait", "60", "--reason", "chaos looks at it")
            except StreamlearnError as error:
                yield f"rollback to version {version} fails: {error.message}"
                continue
        compared = 0
        # The newest version may have answered no request before the load ended.
        logged: list[tuple[bytes, InferAnswer | None]] = [*target.answer_log.of(version)]
        for request, answer_then in logged or [(request, None) for request in recent]:
            try:
                answer_now = ask(late_node.address, request)
                if answer_then is not None:
                    check_equal(answer_then, answer_now, late_node.address)
                for address in target.loop.nodes:
                    again = ask(address, request, token=target.loop.token)
                    check_equal(answer_now, again, address, exact=True)
                    compared += 1
            except StreamlearnError as error:
                yield error.message
        if not compared:
            yield f"no reply of version {version} could be compared with the store's"
        on_compared(compared)


def sampled_versions(versions: Sequence[int], newest: int) -> list[int]:
    """Return the newest version and some older ones, spread evenly, newest first.

    Examples:
        >>> sampled_versions(range(1, 101), 100)
        [100, 80, 60, 40, 20, 1]
        >>> sampled_versions([3, 4], 5)
        [5, 4, 3]
    """
    older = [version for version in versions if version < newest]
    step = max(1, len(older) // _OLDER)
    picked = sorted({*older[::-1][step - 1 :: step], *older[:1]}, reverse=True) if older else []
    return [newest, *picked[-_OLDER:]]
