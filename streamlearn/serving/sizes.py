"""Sizes: how large requests and TensorBatches were, from a node, a file or a distribution."""

from __future__ import annotations

import math
import urllib.request
from collections import Counter
from collections.abc import Sequence
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from streamlearn.errors import BadRecord, ServiceError, UsageError
from streamlearn.struct_decoder import from_json

__all__ = ["Formed", "Histogram", "Rows", "Sizes", "lognormal", "node_sizes", "read_sizes", "summed"]

# (size, count) pairs.
Histogram = list[tuple[int, int]]

_WAIT_S_MAX = 10.0
_BYTES_MAX = 64 << 20
# The total count of a histogram made from a distribution.
_DRAWN = 10_000_000


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Lets a redirect be an error: it would give the token to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follow nothing."""


class Formed(Struct, frozen=True):
    """TensorBatches of one sequence length: the counts of each number of users and of candidates."""

    length: int
    users: Histogram
    candidates: Histogram


class Rows(Struct, frozen=True):
    """Rows in the runs of a graph: all, and those that were padding."""

    run: int
    padding: int


class Sizes(Struct, frozen=True, kw_only=True):
    """The reply of a node at `/sizes`.

    Attributes:
        users_buckets: The present ladder of the user graph.
        candidates_buckets: The present ladder of the score graph.
        lengths: Sequence lengths.
        user_us: The cost of an execution of the user graph in microseconds, by length, then by bucket.
        score_us: The same for the score graph.
        formed: TensorBatches by length.
        requests: The counts of each number of `candidates` and of each length of `histories`.
        user_rows: Rows of the user graph.
        score_rows: Rows of the score graph.
    """

    users_buckets: list[int]
    candidates_buckets: list[int]
    lengths: list[int]
    user_us: list[list[float]]
    score_us: list[list[float]]
    formed: list[Formed]
    requests: dict[str, Histogram]
    user_rows: Rows
    score_rows: Rows


def node_sizes(address: str, token: str | None = None) -> Sizes:
    """Read what a running node recorded since it started.

    `address` is HOST:PORT of its HTTP listener, or `https://HOST:PORT` if it has a certificate.
    """
    if "@" in address:
        message = "the address of a node names a user"
        raise UsageError(message, help="give HOST:PORT, and the node's token with --token-file")
    url = address if address.startswith(("http://", "https://")) else f"http://{address}"
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    try:
        request = urllib.request.Request(f"{url}/sizes", headers=headers)
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_WAIT_S_MAX) as answer:
            body: bytes = answer.read(_BYTES_MAX)
    except (OSError, ValueError, HTTPException) as error:
        message = f"{url}/sizes did not answer: {error}"
        raise ServiceError(message, help="give the HTTP address of a node (front.http), and its token") from None
    return _decoded(body, f"{url}/sizes")


def read_sizes(path: Path) -> Sizes:
    """Read a file that `streamlearn serve tune --save` wrote."""
    try:
        text = path.read_bytes()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise UsageError(message, help="give a file that --save wrote") from None
    return _decoded(text, str(path))


def summed(sizes: Sequence[Sizes]) -> Sizes:
    """Add up the sizes of several nodes; costs are averaged."""
    first = sizes[0]
    for other in sizes[1:]:
        for name in ("users_buckets", "candidates_buckets", "lengths"):
            if getattr(other, name) != getattr(first, name):
                message = f"{name} differs between nodes: {getattr(first, name)} and {getattr(other, name)}"
                raise UsageError(message, help="combine only nodes with equal settings; tune others one by one")
    formed = [
        Formed(
            length,
            _added([node.formed[index].users for node in sizes]),
            _added([node.formed[index].candidates for node in sizes]),
        )
        for index, length in enumerate(first.lengths)
    ]
    return structs.replace(
        first,
        user_us=_means([node.user_us for node in sizes]),
        score_us=_means([node.score_us for node in sizes]),
        formed=formed,
        requests={name: _added([node.requests[name] for node in sizes]) for name in first.requests},
        user_rows=_rows([node.user_rows for node in sizes]),
        score_rows=_rows([node.score_rows for node in sizes]),
    )


def lognormal(mean: float, sigma: float, most: int) -> Histogram:
    """Return the counts of sizes with a lognormal distribution, rounded, at least 1 and at most `most`.

    `sigma` is the standard deviation of the logarithm.

    Example:
        >>> lognormal(2.0, 0.5, 3)
        [(1, 3724527), (2, 3844227), (3, 2431245)]
    """
    if not (mean >= 1 and sigma > 0 and math.isfinite(mean + sigma)):
        message = f"a lognormal distribution of mean {mean} and sigma {sigma}"
        raise UsageError(message, help="give a mean of 1 or more and a sigma above 0, such as 36,0.8")
    median = math.log(mean) - sigma**2 / 2

    def below(size: float) -> float:
        return 0.5 * (1 + math.erf((math.log(size) - median) / (sigma * math.sqrt(2))))

    edges = [0.0, *(below(size + 0.5) for size in range(1, most)), 1.0]
    counts = (round((upper - lower) * _DRAWN) for lower, upper in pairwise(edges))
    return [(size, count) for size, count in enumerate(counts, 1) if count]


def _decoded(text: bytes, source: str) -> Sizes:
    try:
        return from_json(text, Sizes)
    except msgspec.DecodeError as error:
        message = f"{source} holds no sizes: {error}"
        raise BadRecord(message, help="use a node of this release, or a file that --save wrote") from None


def _added(histograms: Sequence[Histogram]) -> Histogram:
    counts: Counter[int] = Counter()
    for histogram in histograms:
        for size, count in histogram:
            counts[size] += count
    return sorted(counts.items())


def _means(costs: Sequence[list[list[float]]]) -> list[list[float]]:
    by_length = zip(*costs, strict=True)
    return [[sum(values) / len(costs) for values in zip(*nodes, strict=True)] for nodes in by_length]


def _rows(rows: Sequence[Rows]) -> Rows:
    return Rows(sum(count.run for count in rows), sum(count.padding for count in rows))
