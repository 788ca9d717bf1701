"""A shard of `end_to_end`: the native module alone, without the streamlearn package's checks. It needs no JAX.

Its arguments are the kit, its address, its number, and the number of shards. It prints "ready", and ends with its
stdin.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from streamlearn.native import native
from tools.gpu.kit import Kit

__all__ = ["EPOCH", "FINGERPRINT", "MODEL", "main"]

MODEL, EPOCH, FINGERPRINT = "gpu_kit", (1, 0), bytes(32)
_STOP_MS = 1_000


def main(words: list[str]) -> None:
    """Serve until stdin ends."""
    kit, address, number, count = Kit.read(Path(words[0])), words[1], int(words[2]), int(words[3])
    parts = tuple(native.TABLE_PARTS * place // count for place in (number, number + 1))
    shard: Any = SimpleNamespace(
        number=number, count=count, parts=parts, model=MODEL, fingerprint=FINGERPRINT, specification=b"[]"
    )
    server = native.PsServer([address], shard, None, None, 1, [])
    server.install(native.TableSet([_namespace(table) for table in kit.about["tables"]]), EPOCH)
    print("ready", flush=True)
    sys.stdin.read()
    server.stop(_STOP_MS)


def _namespace(value: Any) -> Any:
    """Return a JSON object as the native module reads options: with attributes, and an optimizer with its tag."""
    if not isinstance(value, dict):
        return value
    fields = {name: _namespace(field) for name, field in value.items()}
    return SimpleNamespace(**fields, __struct_config__=SimpleNamespace(tag=value.get("kind")))


if __name__ == "__main__":
    main(sys.argv[1:])
