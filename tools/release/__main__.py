"""`python -m tools.release wheel`: the wheel for this processor. `all`: everything; status 3 if a wheel is missing."""

from __future__ import annotations

import platform
import sys
import time

from streamlearn.errors import EXIT_DONE, EXIT_PARTLY, EXIT_USAGE, StreamlearnError
from tools.release.build import DIST, build_release, build_wheel


def main(words: list[str]) -> int:
    """Build, and print what is there and what is not."""
    begin = time.monotonic()

    def note(text: str) -> None:
        print(f"[{time.monotonic() - begin:6.1f} s] {text}", file=sys.stderr, flush=True)

    if words not in (["wheel"], ["all"]):
        print(__doc__, file=sys.stderr)
        return EXIT_USAGE
    try:
        if words == ["wheel"]:
            print(build_wheel(f"{platform.machine()}-unknown-linux-gnu"))
            return EXIT_DONE
        missing = build_release(note)
    except StreamlearnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for file in sorted(DIST.iterdir()):
        print(f"{file.stat().st_size:>12,}  dist/{file.name}")
    for text in missing:
        print(f"not built: {text}", file=sys.stderr)
    return EXIT_PARTLY if missing else EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
