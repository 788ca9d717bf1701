"""Sizes: how large requests and TensorBatches were, as a node or a file says, or as a distribution has them."""

from __future__ import annotations

import math
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from streamlearn.errors import BadRecord, ServiceError, UsageError
from streamlearn.struct_decoder import from_json

__all__ = ["Formed", "Histogram", "Rows", "Sizes", "lognormal", "node_sizes", "read_sizes", "summed"]

Histogram = list[tuple[int, int]]

_WAIT_S_MAX = 10.0
_BYTES_MAX = 64 << 20
# What is drawn from a distribution is counted as if so many requests had come.
_DRAWN = 10_000_000


class Formed(Struct, frozen=True):
    """TensorBatches of one sequence length.

    Attributes:
        length: The length.
        users: How often each number of users came.
        candidates: How often each number of candidates came.
    """

    length: int
    users: Histogram
    candidates: Histogram


class Rows(Struct, frozen=True):
    """Rows that a graph was run with.

    Attributes:
        run: All of them.
        padding: Those that were nobody's.
    """

    run: int
    padding: int


class Sizes(Struct, frozen=True, kw_only=True):
    """What a node says at `/sizes`.

    Attributes:
        users_buckets: The present ladder of the user graph.
        candidates_buckets: That of the score graph.
        lengths: Sequence lengths.
        user_us: What an execution of the user graph costs in microseconds, lists by length and then by bucket.
        score_us: That of the score graph.
        formed: TensorBatches by length.
        requests: How often each number of `candidates` came, and of places of `histories`.
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
    """What a running node recorded since it started.

    Args:
        address: HOST:PORT of its HTTP; `https://HOST:PORT` where it has a certificate.
        token: What callers must say.

    Raises:
        ServiceError: It did not answer, or not with sizes.
    """
    url = address if address.startswith(("http://", "https://")) else f"http://{address}"
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    try:
        asked = urllib.request.Request(f"{url}/sizes", headers=headers)
        with urllib.request.urlopen(asked, timeout=_WAIT_S_MAX) as answer:
            found: bytes = answer.read(_BYTES_MAX)
    except (OSError, ValueError, urllib.error.URLError) as error:
        message = f"{url}/sizes did not answer: {error}"
        raise ServiceError(message, help="give the HTTP address of a node (front.http), and its token") from None
    return _decoded(found, f"{url}/sizes")


def read_sizes(path: Path) -> Sizes:
    """Sizes of a file, as `streamlearn serve tune --save` writes them.

    Raises:
        UsageError: It cannot be read.
        BadRecord: It holds something else.
    """
    try:
        found = path.read_bytes()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise UsageError(message, help="give a file that --save wrote") from None
    return _decoded(found, str(path))


def summed(sizes: Sequence[Sizes]) -> Sizes:
    """What several nodes recorded, as if they were one; costs are their means.

    Raises:
        UsageError: Their ladders differ, and so do the costs they measured.
    """
    first = sizes[0]
    for one in sizes[1:]:
        for name in ("users_buckets", "candidates_buckets", "lengths"):
            if getattr(one, name) != getattr(first, name):
                message = f"{name} differs between nodes: {getattr(first, name)} and {getattr(one, name)}"
                raise UsageError(message, help="combine only nodes with equal settings; tune others one by one")
    formed = [
        Formed(
            length,
            _added([one.formed[at].users for one in sizes]),
            _added([one.formed[at].candidates for one in sizes]),
        )
        for at, length in enumerate(first.lengths)
    ]
    return structs.replace(
        first,
        user_us=_means([one.user_us for one in sizes]),
        score_us=_means([one.score_us for one in sizes]),
        formed=formed,
        requests={name: _added([one.requests[name] for one in sizes]) for name in first.requests},
        user_rows=_rows([one.user_rows for one in sizes]),
        score_rows=_rows([one.score_rows for one in sizes]),
    )


def lognormal(mean: float, sigma: float, most: int) -> Histogram:
    """How often each size comes, of a lognormal distribution, rounded, at least 1.

    Args:
        mean: Its mean.
        sigma: The spread of its logarithm.
        most: Sizes beyond it are counted as this.

    Raises:
        UsageError: It is no distribution.

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


def _decoded(found: bytes, where: str) -> Sizes:
    try:
        return from_json(found, Sizes)
    except msgspec.DecodeError as error:
        message = f"{where} holds no sizes: {error}"
        raise BadRecord(message, help="use a node of this release, or a file that --save wrote") from None


def _added(histograms: Sequence[Histogram]) -> Histogram:
    found: dict[int, int] = {}
    for size, count in _all(histograms):
        found[size] = found.get(size, 0) + count
    return sorted(found.items())


def _all(histograms: Sequence[Histogram]) -> Iterator[tuple[int, int]]:
    for histogram in histograms:
        yield from histogram


def _means(costs: Sequence[list[list[float]]]) -> list[list[float]]:
    by_length = zip(*costs, strict=True)
    return [[sum(one) / len(costs) for one in zip(*of, strict=True)] for of in by_length]


def _rows(rows: Sequence[Rows]) -> Rows:
    return Rows(sum(one.run for one in rows), sum(one.padding for one in rows))
