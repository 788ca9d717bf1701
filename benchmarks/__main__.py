"""Runs one benchmark: progress on stderr, one line of JSON as the last line of stdout."""

from __future__ import annotations

import argparse
import importlib
import sys
import time

from streamlearn.errors import EXIT_FAILED, StreamlearnError

NAMES = (
    "wire",
    "table",
    "ps",
    "versions",
    "join",
    "features",
    "library",
    "retrieval",
    "ingest",
    "trainer",
    "learning",
    "freshness",
    "models",
    "executables",
    "serving",
    "overload",
    "access",
    "loop",
    "idle",
    "machines",
    "workers",
)
# The module of a benchmark, where its name differs.
_MODULES = {
    "access": "nodes.access",
    "learning": "learning_loss",
    "library": "streams.library_items",
    "retrieval": "retrieval.whole",
    "workers": "workers.whole",
}
_WORDS = {"ingest": {"before", "only"}, "retrieval": {"only"}, "serving": {"only"}}


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--quick", action="store_true", help="use smaller sizes, and end within 60 seconds")
    parser.add_argument("--before", default="", metavar="COMMIT", help="ingest: build it too, and take turns")
    parser.add_argument(
        "--only",
        default="",
        metavar="PART",
        help="ingest, retrieval, serving: measure one part, such as rescale, scans or life",
    )
    options = parser.parse_args()
    words = {name: value for name in ("before", "only") if (value := getattr(options, name))}
    if unknown := words.keys() - _WORDS.get(options.name, set()):
        parser.error(f"{options.name} does not take --{min(unknown)}")
    module = importlib.import_module(f"benchmarks.{_MODULES.get(options.name, options.name)}")
    begin = time.monotonic()

    def note(text: str) -> None:
        print(f"[{time.monotonic() - begin:6.1f} s] {text}", file=sys.stderr, flush=True)

    try:
        result = module.run(options.quick, note, **words)
    except StreamlearnError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    for name, value in (*result.figures.items(), *result.ratios.items()):
        note(f"{name:36} {value:>18,.4g}")
    for name, reason in result.unmeasured.items():
        note(f"{name:36} {'not measured':>18}: {reason}")
    note(f"failed: {', '.join(result.failures)}" if result.failures else "done")
    print(result.line())
    return EXIT_FAILED if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
