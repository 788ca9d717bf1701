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
    """Run libFuzzer with the command line's options; seeds go into the first corpus folder."""
    folder = tempfile.TemporaryDirectory()
    known = decoders(Path(folder.name))

    def run(data: bytes) -> None:
        decoder = known[data[0] % len(known)] if data else known[0]
        with suppress(*decoder.errors):
            decoder.decode(data[1:])

    corpora = [Path(word) for word in sys.argv[1:] if not word.startswith("-")]
    for index, decoder in enumerate(known):
        for number, good in enumerate(decoder.good):
            (corpora[0] / f"seed-{index}-{number}").write_bytes(bytes([index]) + good)
    atheris.Setup(sys.argv, run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
