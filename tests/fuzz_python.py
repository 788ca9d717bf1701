#!/usr/bin/env python
"""Fuzzes the Python decoders of `test_any_bytes` with Atheris, guided by coverage: `make fuzz-python`.

One target drives all of them: the first byte of an input selects the decoder, the rest is what it decodes.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["streamlearn"]):
    from tests.test_any_bytes import decoders


def main() -> None:
    """Run libFuzzer with the options and folders of the command line, and with good bytes of each decoder."""
    folder = tempfile.TemporaryDirectory()
    known, seeds = decoders(Path(folder.name)), Path(folder.name) / "seeds"
    seeds.mkdir()

    def run(data: bytes) -> None:
        decoder = known[data[0] % len(known)] if data else known[0]
        with suppress(*decoder.errors):
            decoder.decode(data[1:])

    for index, decoder in enumerate(known):
        for number, good in enumerate(decoder.good):
            (seeds / f"{index}-{number}").write_bytes(bytes([index]) + good)
    atheris.Setup([*sys.argv, str(seeds)], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
