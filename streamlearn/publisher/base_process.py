"""The process that writes a base, at low priority. It decides nothing, and knows no publisher.

Run as a program: `python -m streamlearn.publisher.base_process STORE MODEL VERSION SETTINGS`, the last one JSON.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import msgspec

from streamlearn.errors import ServiceError
from streamlearn.publisher.bases import Compact
from streamlearn.settings.versions import VersionSettings
from streamlearn.struct_decoder import from_json
from streamlearn.versions import compact, open_store

__all__ = ["compact_apart", "main"]

_NICE = 19
_STDERR_CHARS_MAX = 500


def compact_apart(
    store_url: str, model: str, settings: VersionSettings | None = None, *, wall_s_max: float = 3_600.0
) -> Compact:
    """Return a `Compact` that writes each base in a process of its own, and kills it after `wall_s_max`.

    The store must be one that another process can open from its URL and settings, so not one in memory.
    """
    encoded = msgspec.json.encode(settings or VersionSettings()).decode()

    def write(version: int) -> None:
        command = [sys.executable, "-m", "streamlearn.publisher.base_process", store_url, model, str(version), encoded]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=wall_s_max)
        except subprocess.TimeoutExpired:
            message = f"writing the base of version {version} took longer than {wall_s_max:g} s"
            raise ServiceError(message, help="raise wall_s_max, or write it by hand, without a time limit") from None
        if done.returncode:
            message = f"the base of version {version} was not written: {done.stderr.strip()[-_STDERR_CHARS_MAX:]}"
            help = "see what the store lacks; the publisher tries again after the next version"
            raise ServiceError(message, help=help)

    return write


def main(store_url: str, model: str, version: int, settings: str) -> None:
    """Write the base of a version at the lowest priority."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    compact(open_store(store_url, settings=from_json(settings, VersionSettings)), model, version)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
