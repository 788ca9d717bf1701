"""The command line of the peers: build their environments, or run one peer."""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks.nodes.serving_peers import SERVING_PEERS, ready_servers
from benchmarks.online_reads import READING_PEERS
from benchmarks.peers.environment import ready_environments
from benchmarks.peers.peer import PEERS, ready_peers, run_peer
from benchmarks.retrieval.scans import INDEX_PEERS
from streamlearn.errors import EXIT_DONE, EXIT_FAILED, EXIT_PARTLY, StreamlearnError, UsageError

_OTHERS = READING_PEERS | INDEX_PEERS
_ALL = [*PEERS, *SERVING_PEERS, *_OTHERS]


def main() -> int:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build", help="build environments into the cache; by default all")
    build.add_argument("names", nargs="*", metavar="NAME", help=", ".join(_ALL))
    run = verbs.add_parser("run", help="measure one peer; prints one line of JSON on stdout")
    run.add_argument("name", choices=PEERS)
    run.add_argument(
        "--figures", nargs="+", default=["fill"], help="groups of the peer; latency must be alone; by default fill"
    )
    run.add_argument("--keys-count", type=int, default=1_000_000)
    run.add_argument("--cores", type=int, default=1)
    run.add_argument("--latency-s", type=float, default=6.0)
    run.add_argument("--window-steps", type=int, default=30)
    run.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        return _build(options.names) if options.verb == "build" else _run(options)
    except StreamlearnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _build(names: list[str]) -> int:
    unknown = [name for name in names if name not in _ALL]
    if unknown:
        message = f"there is no peer {', '.join(unknown)}"
        raise UsageError(message, help=f"choose from {', '.join(_ALL)}")
    chosen = names or _ALL
    ready = ready_peers([name for name in chosen if name in PEERS], _note)
    ready += ready_servers([name for name in chosen if name in SERVING_PEERS], _note)
    ready += ready_environments({name: _OTHERS[name] for name in chosen if name in _OTHERS}, _note)
    for name in ready:
        _note(f"peer {name}: ready")
    if len(ready) == len(chosen):
        return EXIT_DONE
    return EXIT_PARTLY if ready else EXIT_FAILED


def _run(options: argparse.Namespace) -> int:
    figures = run_peer(
        options.name,
        keys_count=options.keys_count,
        cores=options.cores,
        figures=options.figures,
        note=_note,
        seed=options.seed,
        latency_s=options.latency_s,
        window_steps=options.window_steps,
    )
    print(json.dumps(figures))
    return EXIT_DONE


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
