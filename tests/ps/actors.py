"""Actors of the chaos test: shards and a trainer as processes of their own, which may be killed at any moment.

What a step pushes is a function of its number, and a version says how many steps it has learned: after any death the
next trainer goes on from the newest committed version, and the rows it comes to must be those of one process that
took every step once.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from streamlearn.errors import StreamlearnError, VersionDefect
from streamlearn.ps import Epoch, Place, PsClient, ShardServer, Shelf
from streamlearn.ps import server as server_module
from streamlearn.settings import PsSettings
from streamlearn.table import TableSet
from streamlearn.testing import wait_until
from streamlearn.versions import Chain, Committed, Cut, VersionWriter, open_store
from tests.ps.model import KEYS, MODEL, OPTIONS, head

__all__ = ["STEPS_PER_VERSION", "listen_again", "run_shard", "run_trainer", "steps_learned", "take_step"]

STEPS_PER_VERSION = 4
_BASE_EVERY = 8
_SETTINGS = PsSettings(
    retry_wait_ms_max=3_000,
    reply_wait_ms_max=1_000,
    connect_wait_ms_max=500,
    backoff_first_ms=5,
    backoff_ms_max=50,
    order_wait_s_max=3.0,
    export_wait_s_max=5.0,
    restore_wait_s_max=5.0,
    push_block_keys=128,
    drain_ms_max=500,
)


def listen_again(port: int) -> bool:
    """Whether a port can be listened at; for a moment after a death it may not."""
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def run_shard(place: str, port: int, store: str) -> None:
    """Be a shard, until killed."""
    wait_until(lambda: listen_again(port), f"port {port} to be free")
    settings = msgspec.structs.replace(_SETTINGS, listen=[f"127.0.0.1:{port}"])
    server_module._EXPORT_NICE = 0  # beside all else that runs here an export would be done when the tests are
    server = ShardServer(Place.parse(place), OPTIONS, Shelf(open_store(store), MODEL), settings)
    server._order_thread.join()


def take_step(pusher: Any, number: int) -> None:
    """Push what one step pushes; to a client, or to tables."""
    rng = np.random.default_rng(number)
    for options in OPTIONS:
        name, dim = options.spec.name, options.spec.dim
        keys = rng.choice(KEYS, 300)
        gradients = rng.standard_normal((len(keys), dim), np.float32)
        admit = [(150, 2)] if options.admission else []
        if isinstance(pusher, TableSet):
            pusher[name].push(keys, gradients, now_ms=number * 1_000, admit=admit)
        else:
            pusher.push(name, keys, gradients, now_ms=number * 1_000, admit=admit)


def steps_learned(version: Committed | Chain | None) -> int:
    """How many steps a version has learned."""
    return 0 if version is None else int(version.manifest.metrics["steps"])


def newest(store: str) -> Chain | None:
    """The newest committed version."""
    try:
        return Chain.find(open_store(store), MODEL)
    except VersionDefect as error:
        if error.defect == "missing":
            return None
        raise


def run_trainer(addresses: Sequence[str], store: str, run: int, steps: int, done: str) -> None:
    """Train from the newest committed version to so many steps, whatever happens; then leave a file."""
    rng = random.Random(run)
    settings = msgspec.structs.replace(_SETTINGS, addresses=list(addresses))
    epoch, client = Epoch(run), None
    while True:
        try:
            client = client or PsClient.connect(MODEL, OPTIONS, settings)
            chain = newest(store)
            client.restore(epoch, None if chain is None else chain.ref)
            _train(client, store, run, steps, rng, chain)
        except StreamlearnError as error:
            # Whatever it was: all shards go back to what is committed, under a new epoch.
            print(f"trainer {epoch}: {type(error).__name__}: {error.message}", flush=True)
            epoch = epoch.next()
        else:
            Path(done).write_text(str(os.getpid()))
            return


def _train(client: PsClient, store: str, run: int, steps: int, rng: random.Random, chain: Chain | None) -> None:
    learned, version = steps_learned(chain), 0 if chain is None else chain.version
    parent = None if chain is None else chain.ref
    while learned < steps:
        take_step(client, learned)
        learned += 1
        if learned % STEPS_PER_VERSION and learned < steps:
            continue
        version += 1
        client.seal(version)
        if rng.random() < 0.15 and learned < steps:
            # As when the store refuses: the next version says what this one would have said.
            client.abandon(version)
            continue
        said = head(version, parent, run)
        if version % _BASE_EVERY == 0:
            said = msgspec.structs.replace(said, kind="base")
        writer = VersionWriter(open_store(store), said)
        done = writer.finish(Cut(metrics={"steps": float(learned)}), client.export(said))
        client.commit(done.ref)
        parent = done.ref
