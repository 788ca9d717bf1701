"""Resharding: a model's rows go from two shards to three and to one, by way of its versions."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.keys import Keys, every_bit
from streamlearn.apps import AppFolder, load_app
from streamlearn.ps import Epoch, PsClient
from streamlearn.table import TableOptions, TableSet, declared_tables
from streamlearn.versions import Cut, Head, VersionRef, VersionWriter, open_store, table_record
from tools.services.process import OwnedProcess

__all__ = ["resharding_figures"]

_ROOT = Path(__file__).parents[2]
_APP = _ROOT / "benchmarks" / "loop_deepfm"
_BLOCK, _READY_S_MAX, _LISTENS = 1 << 16, 120.0, " listens at "

Float32s = npt.NDArray[np.float32]


def resharding_figures(place: Path, keys_count: int = 2_000_000) -> dict[str, float]:
    """Learn keys on two shards, restore them into three and then into one, and compare every row bit for bit.

    The same gradients go into tables of this process: after each restore, rows that were pushed again must have the
    same bits too, so states of the optimizer have moved with their rows.
    """
    folder = load_app(_APP, (f"versions.store={place}/versions",))
    options = declared_tables(folder.app.tables, folder.settings.tables)
    twin = TableSet(options)
    keys = every_bit(Keys(1).between(0, keys_count))
    newest: VersionRef | None = None
    different, seconds_per_gb, restored_bytes = 0, dict[str, float](), 0
    for turn, count in enumerate((2, 3, 1), 1):
        with _shards(folder, options, count, place / str(turn)) as client:
            begun_s = time.monotonic()
            restored = client.restore(Epoch(turn), newest)
            seconds = time.monotonic() - begun_s
            if newest is not None:
                restored_bytes = sum(shard.bytes for shard in restored)
                seconds_per_gb[f"reshard_to_{count}_s_per_gb"] = seconds / restored_bytes * 1e9
                different += _different(client, twin, options, keys)
            _push(client, twin, options, keys, turn)
            different += _different(client, twin, options, keys)
            newest = _committed(folder, client, twin, options, turn, newest)
    figures = {"reshard_rows_different": float(different), "reshard_rows": float(keys_count)}
    figures |= {"reshard_gb": restored_bytes / 1e9}
    return figures | {"reshard_s_per_gb": max(seconds_per_gb.values())} | seconds_per_gb


@contextmanager
def _shards(folder: AppFolder, options: Sequence[TableOptions], count: int, place: Path) -> Iterator[PsClient]:
    """Run shards in processes of their own, and return their client."""
    place.mkdir()
    with ExitStack() as stack:
        started = []
        for number in range(count):
            command = [sys.executable, "-m", "streamlearn", "ps", "--app", str(folder.folder)]
            command += ["--shard", f"{number}/{count}", "--set", f"versions.store={folder.store_url}"]
            shard = OwnedProcess(f"shard-{number}", command, place, environment={"PYTHONPATH": str(_ROOT)})
            stack.callback(shard.stop)
            started.append(shard)
        for shard in started:
            shard.wait_until(lambda shard=shard: _LISTENS in shard.log.read_text(), _READY_S_MAX)  # type: ignore[misc]
        addresses = [shard.log.read_text().partition(_LISTENS)[2].split()[0] for shard in started]
        settings = msgspec.structs.replace(folder.settings.ps, addresses=addresses)
        yield stack.enter_context(closing(PsClient.connect(folder.app.name, options, settings)))


def _push(
    client: PsClient, twin: TableSet, options: Sequence[TableOptions], keys: npt.NDArray[np.uint64], seed: int
) -> None:
    for table in options:
        name, random = table.spec.name, np.random.default_rng(seed)
        for begin in range(0, len(keys), _BLOCK):
            block = keys[begin : begin + _BLOCK]
            gradients = random.standard_normal((len(block), table.spec.dim), np.float32)
            client.push(name, block, gradients, now_ms=seed)
            twin[name].push(block, gradients, now_ms=seed)


def _different(client: PsClient, twin: TableSet, options: Sequence[TableOptions], keys: npt.NDArray[np.uint64]) -> int:
    """Return the number of rows with other bits than those of the twin."""
    different = 0
    for table in options:
        name = table.spec.name
        for begin in range(0, len(keys), _BLOCK):
            block = keys[begin : begin + _BLOCK]
            found, expected = client.pull(name, block), twin[name].lookup(block)
            different += int((found.view(np.uint32) != expected.view(np.uint32)).any(axis=1).sum())
    return different


def _committed(
    folder: AppFolder,
    client: PsClient,
    twin: TableSet,
    options: Sequence[TableOptions],
    version: int,
    parent: VersionRef | None,
) -> VersionRef:
    """Write a version, as a publisher does."""
    head = Head(
        model=folder.app.name, run=1, version=version, kind="base" if parent is None else "delta", parent=parent,
        fingerprint="bench", windows="bench", tables=tuple(table_record(twin, table.spec.name) for table in options),
    )  # fmt: skip
    client.seal(version)
    done = VersionWriter(open_store(folder.store_url), head).finish(Cut(), client.export(head))
    client.commit(done.ref)
    return done.ref
