"""Fetch: files of a version, several at once and verified; a file that differs from its entry is a defect."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from streamlearn.errors import BadRecord, FileMissing, Oversize
from streamlearn.versions.format.manifest import FileEntry
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store

__all__ = ["fetch", "fetch_exact", "in_order"]

Job = TypeVar("Job")
Done = TypeVar("Done")


def fetch(store: Store, folder: str, entry: FileEntry, *, bytes_max: int) -> memoryview:
    """Read and verify a file of the version in a folder.

    Raises:
        VersionDefect: The file is missing, too short, has other contents, or is larger than `bytes_max`.
        StoreUnreachable: The store did not answer.
    """
    path = f"{folder}/{entry.path}"
    if entry.bytes > bytes_max:
        raise defective(path, "corrupted", f"the manifest says {entry.bytes} bytes, but files have at most {bytes_max}")
    return fetch_exact(store, path, entry.bytes, entry.sha256)


def fetch_exact(store: Store, path: str, size: int, sha256: str) -> memoryview:
    """Read a file of a known size and digest; raises like `fetch`."""
    try:
        data = store.read(path, bytes_max=size, sha256=sha256)
    except FileMissing:
        raise defective(path, "missing_file", f"no file of {size} bytes was found") from None
    except (BadRecord, Oversize) as error:
        actual = store.size(path)
        if actual is not None and actual < size:
            raise defective(path, "truncated", f"it has {actual} bytes, expected {size}") from None
        raise defective(path, "corrupted", error.message) from None
    if len(data) != size:
        raise defective(path, "corrupted", f"it has {len(data)} bytes, expected {size}")
    return data


def in_order(jobs: Iterable[Job], work: Callable[[Job], Done], *, threads: int) -> Iterator[Done]:
    """Yield the result of each job in order while threads work on later ones; threads + 1 results are held at most.

    On an error, or when the iterator is closed, pending jobs are cancelled and running ones awaited.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="streamlearn-fetch") as pool:
        pending: deque[Future[Done]] = deque()
        try:
            for job in jobs:
                pending.append(pool.submit(work, job))
                if len(pending) > threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
