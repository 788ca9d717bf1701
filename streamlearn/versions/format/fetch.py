"""Fetch: files of a version, several at once, verified, and named where they are not what the manifest says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from streamlearn.errors import BadRecord, FileMissing, Oversize
from streamlearn.versions.format.manifest import FileEntry
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store

__all__ = ["fetch", "in_order"]

Job = TypeVar("Job")
Done = TypeVar("Done")


def fetch(store: Store, folder: str, entry: FileEntry, *, bytes_max: int) -> memoryview:
    """The bytes of a file of a version.

    Args:
        store: The store.
        folder: The version's folder.
        entry: The file.
        bytes_max: A larger one is refused.

    Raises:
        VersionDefect: It is not there, is too short, holds something else, or is too large.
        StoreUnreachable: The store did not answer.
    """
    path = f"{folder}/{entry.path}"
    if entry.bytes > bytes_max:
        raise defective(path, "corrupted", f"the manifest says {entry.bytes} bytes, but files have at most {bytes_max}")
    try:
        data = store.read(path, bytes_max=entry.bytes, sha256=entry.sha256)
    except FileMissing:
        raise defective(path, "missing_file", f"no file of {entry.bytes} bytes was found") from None
    except (BadRecord, Oversize) as error:
        size = store.size(path)
        if size is not None and size < entry.bytes:
            raise defective(path, "truncated", f"it has {size} bytes, but the manifest says {entry.bytes}") from None
        raise defective(path, "corrupted", error.message) from None
    if len(data) != entry.bytes:
        raise defective(path, "corrupted", f"it has {len(data)} bytes, but the manifest says {entry.bytes}")
    return data


def in_order(jobs: Iterable[Job], work: Callable[[Job], Done], *, threads: int) -> Iterator[Done]:
    """What work gives of each job, in order, while later ones are worked on; one more than threads are held.

    On an error, and when the iterator is let go of, work that has not begun is dropped and the rest waited for.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="streamlearn-fetch") as pool:
        waiting: deque[Future[Done]] = deque()
        try:
            for job in jobs:
                waiting.append(pool.submit(work, job))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for one in waiting:
                one.cancel()
