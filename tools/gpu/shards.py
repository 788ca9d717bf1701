"""Shards: whole training steps, from rows on shards over the device and back, with the native module alone."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.native import native
from tools.gpu.children import children
from tools.gpu.kit import Kit
from tools.gpu.pjrt import Executable, Pjrt
from tools.gpu.report import Report
from tools.gpu.shard import EPOCH, FINGERPRINT, MODEL
from tools.gpu.step import Step

__all__ = ["end_to_end"]

_KEYS, _IDS_MAX, _SKEW = 1_000_000, 9, 4.0
_DISTINCT_STEPS, _KEYS_MAX = 8, 1 << 26
_START_S_MAX = 300.0
# The gradients of both flat inputs among the outputs of a step.
_GRADIENTS = (3, 5)
_MIXER = np.uint64(0x9E3779B97F4A7C15)


class _Rows:
    """Packs the rows of steps from shards, and pushes their gradients; one thread does each."""

    def __init__(self, kit: Kit, step: Step, addresses: list[str]) -> None:
        pack, tables = kit.about["pack"], kit.about["tables"]
        dims = [table["spec"]["dim"] for table in tables]
        self._numbers = {table["spec"]["name"]: number for number, table in enumerate(tables)}
        identity: Any = SimpleNamespace(
            addresses=addresses, role="trains", client=secrets.randbits(128), model=MODEL, fingerprint=FINGERPRINT,
            dims=dims, encoding="float32", seed=secrets.randbits(63),
        )  # fmt: skip
        self.client = native.PsClient(identity, None, None, [])
        self.client.set_epoch(EPOCH)
        self._source, self._scatter = (self.client, len(dims), None), native.Scatter(dims, _KEYS_MAX)
        assert not pack["user"]["sequence"]
        assert not pack["item"]["sequence"]
        sides = ((pack["user"], step.given[0]), (pack["item"], step.given[1]))
        self._sides = [(side, self._shape(len(array), side["flat_width"])) for side, array in sides]

    def columns(self, seed: int) -> list[list[Any]]:
        """Return random columns of both sides: keys that are more frequent the smaller they are, and numbers."""
        rng = np.random.default_rng(seed)
        return [
            [self._column(rng, number, column, shape.rows) for number, column in enumerate(side["flat"])]
            for side, shape in self._sides
        ]

    def pack(self, columns: list[list[Any]]) -> list[npt.NDArray[np.float32]]:
        """Return the flat inputs of both sides."""
        packed = []
        for of_side, (_, shape) in zip(columns, self._sides, strict=True):
            out = np.empty((shape.rows, shape.width), np.float32)
            native.pack_flat(self._source, of_side, shape, out.reshape(-1))
            packed.append(out)
        return packed

    def push(self, columns: list[list[Any]], gradients: list[npt.NDArray[np.float32]]) -> int:
        """Push the gradients of both flat inputs, and return how many keys learned."""
        self._scatter.clear()
        for of_side, (_, shape), gradient in zip(columns, self._sides, gradients, strict=True):
            self._scatter.add_flat(of_side, shape, gradient.reshape(-1))
        learned = 0
        for number in self._numbers.values():
            keys, rows, counts = self._scatter.gradients(number)
            options: Any = SimpleNamespace(counts=counts, admit=[], now_ms=time.time_ns() // 1_000_000, rate_scale=1.0)
            learned += self.client.push(number, keys, rows.reshape(-1), options)[0]
        return learned

    def _column(self, rng: Any, number: int, column: dict[str, Any], rows: int) -> Any:
        offsets, count, is_dense = None, rows, column["pooling"] == "dense"
        if column["pooling"] == "mean":  # the slot with several ids
            lengths = rng.integers(1, _IDS_MAX + 1, rows)
            offsets, count = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), int(lengths.sum())
        ids = (rng.random(count) ** _SKEW * _KEYS).astype(np.uint64)
        numbers = rng.normal(size=rows * column["width"]).astype(np.float32)
        values = numbers if is_dense else (ids * np.uint64(64) + np.uint64(number)) * _MIXER
        table = 0 if is_dense else self._numbers[column["table"]]
        fields = {name: column[name] for name in ("name", "at", "width", "pooling")}
        return SimpleNamespace(**fields, values=values, table=table, offsets=offsets, weights=None)

    @staticmethod
    def _shape(rows: int, width: int) -> Any:
        return SimpleNamespace(rows=rows, rows_padded=rows, width=width, stride=width, length=1)


def end_to_end(
    kit: Kit, pjrt: Pjrt, executables: dict[str, Executable], report: Report, sizes: tuple[int, float]
) -> None:
    """Measure steps with their rows on shards; `sizes` has the number of shards and the seconds.

    Packing, the device and pushing overlap, one step each, as in the trainer.
    """
    shards, seconds = sizes
    graph = kit.of("step")[-1]
    step = Step(kit, pjrt, graph, executables[graph.name])
    with tempfile.TemporaryDirectory(prefix="streamlearn-gpu-") as place:
        addresses = [f"unix:{place}/{number}" for number in range(shards)]
        commands = [
            ["tools.gpu.shard", str(kit.folder), address, str(number), str(shards)]
            for number, address in enumerate(addresses)
        ]
        with children(commands, _START_S_MAX + 10 * seconds):
            rows = _Rows(kit, step, addresses)
            with closing(rows.client):
                busy_s, steps, learned = _run(rows, step, seconds)
    if not learned:
        message = "no key of any step learned"
        raise RuntimeError(message)
    report.figures |= {
        f"end_to_end_{stage}_us_per_sample": busy_s[stage] * 1e6 / steps / graph.rows for stage in busy_s
    }
    report.figures["end_to_end_samples_per_s"] = steps * graph.rows / busy_s["whole"]
    slowest = max((stage for stage in busy_s if stage != "whole"), key=busy_s.__getitem__)
    report.note(f"  {graph.name} on {shards} shards: {steps} steps; {slowest} bounds the pace")


def _run(rows: _Rows, step: Step, seconds: float) -> tuple[dict[str, float], int, int]:
    """Run steps, and return the seconds of each stage and of the whole, the steps, and the keys that learned."""
    prepared = [rows.columns(seed) for seed in range(_DISTINCT_STEPS)]
    busy_s, steps, learned = dict.fromkeys(("pack", "device", "push"), 0.0), 0, 0

    def timed(stage: str, work: Callable[..., Any], *arguments: Any) -> Any:
        begin_s = time.perf_counter()
        result = work(*arguments)
        busy_s[stage] += time.perf_counter() - begin_s
        return result

    step.whole(step.given)  # the first run is slower
    begin_s = time.perf_counter()
    with ThreadPoolExecutor(1) as packer, ThreadPoolExecutor(1) as pusher:
        packing, pushing = packer.submit(timed, "pack", rows.pack, prepared[0]), pusher.submit(int)
        while not steps or time.perf_counter() - begin_s < seconds:
            columns, flat = prepared[steps % len(prepared)], packing.result()
            steps += 1
            packing = packer.submit(timed, "pack", rows.pack, prepared[steps % len(prepared)])
            outputs = timed("device", step.whole, [*flat, *step.given[2:]])
            learned += pushing.result()
            pushing = pusher.submit(timed, "push", rows.push, columns, [outputs[at] for at in _GRADIENTS])
        learned += pushing.result()
    return busy_s | {"whole": time.perf_counter() - begin_s}, steps, learned
