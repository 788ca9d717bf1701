"""The demo's samples: ingest in a process of its own, and what it writes, read as it comes and learned once."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamlearn.errors import ServiceError, StreamlearnError
from streamlearn.marks import MarkedRows, Marks, Settled
from streamlearn.samples import SampleCodec
from streamlearn.topics import Reader, create_topic

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.samples import SampleBatch

__all__ = ["DemoSamples", "Learned"]

_COUNTED = re.compile(r'^streamlearn_ingest_joined_total\{what="(\w+)"\} (\S+)$', re.MULTILINE)
_LETTERS = re.compile(r"^streamlearn_ingest_dead_letters_total\{[^}]*\} (\S+)$", re.MULTILINE)
_MESSAGES = 64
_POLL_S, _END_S_MAX = 0.05, 20.0


@dataclass(frozen=True, eq=False)
class Learned:
    """A batch, and what of it is to be learned.

    Attributes:
        batch: The samples.
        settled: By row, after the rule that a label is learned once.
    """

    batch: SampleBatch
    settled: Settled


class DemoSamples:
    """Starts ingest on an application's topics; its samples are read while it runs.

    Args:
        app: The application's folder.
        folder: The same, loaded with `changes`.
        changes: What `--set` says.
    """

    def __init__(self, app: Path, folder: AppFolder, changes: Sequence[str]) -> None:
        self._folder, self._port = folder, _free_port()
        self._codec = SampleCodec(folder.app, folder.settings.samples)
        self._marks = Marks(len(folder.app.labels), folder.settings.marks)
        self._step = 0
        with ExitStack() as ends:
            self._said = ends.enter_context(tempfile.TemporaryFile("w+"))
            command = [sys.executable, "-m", "streamlearn", "ingest", str(app), "--json"]
            for change in (*changes, f"telemetry.metrics_port={self._port}", "telemetry.log_level=warning"):
                command += ["--set", change]
            self._process = subprocess.Popen(command, stdout=self._said)
            ends.callback(self._end)
            self._ends = ends.pop_all()

    @staticmethod
    def prepare(folder: AppFolder) -> None:
        """Make the topics that ingest writes to."""
        partitions = folder.settings.replay.partitions
        for name in ("samples", "progress", "dead_letters"):
            create_topic(folder.topic_url(name), folder.topic_settings(name, partitions), folder.access).close()

    def batches(self) -> Iterator[Learned | None]:
        """Every batch, until ingest has ended and all it wrote was read; None while there is nothing new.

        Raises:
            ServiceError: Ingest failed.
        """
        with self._folder.open_topic("samples") as topic, topic.reader() as reader:
            at = [reader.earliest(partition) for partition in range(topic.partitions)]
            while True:
                has_ended = self._process.poll() is not None
                found = [one for partition in range(topic.partitions) for one in self._read(reader, partition, at)]
                yield from found
                if found:
                    continue
                if has_ended:
                    break
                yield None
                time.sleep(_POLL_S)
        if self._process.returncode:
            message = f"ingest ended with status {self._process.returncode}"
            raise ServiceError(message, help="what it said is above; a missing Prism is fetched by make fetch")

    def counts(self) -> Mapping[str, int]:
        """What ingest has counted by now, as its metrics say; nothing while it begins, and once it has ended."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=1) as answer:
                page = answer.read(1 << 20).decode()
        except OSError:
            return {}
        letters = sum(float(count) for count in _LETTERS.findall(page))
        return {what: round(float(count)) for what, count in _COUNTED.findall(page)} | {"dead_letters": round(letters)}

    def report(self) -> dict[str, Any]:
        """What ingest said when it ended."""
        self._said.seek(0)
        said: dict[str, Any] = json.loads(self._said.read())
        return said

    def check(self) -> dict[str, int]:
        """What was learned of labels; each once, whatever came how often.

        Raises:
            StreamlearnError: Rows came whose labels are of no use.
        """
        counters = self._marks.counters
        if counters["rows_old"] or counters["refused"]:
            message = f"{counters['rows_old']} rows were too old to be learned, {counters['refused']} labels refused"
            raise StreamlearnError(message, help="this is a defect: please report it with this output")
        return {name: counters[name] for name in ("learn", "correct", "labels_dropped")}

    def close(self) -> None:
        """End ingest."""
        self._ends.close()

    def _read(self, reader: Reader, partition: int, at: list[int]) -> list[Learned]:
        if at[partition] >= reader.end(partition):
            return []
        records = reader.read(partition, at[partition], max_records=_MESSAGES)
        at[partition] = records.next_offset
        return [self._learned(self._codec.decode(one)) for one in records.values if one is not None]

    def _learned(self, batch: SampleBatch) -> Learned:
        requests = batch.requests
        bits = [(np.uint32(1 << number), label) for number, label in enumerate(batch.labels)]
        none = np.zeros(len(batch), np.uint32)
        rows = MarkedRows(
            topic_id=batch.header.events_topic_id,
            partition=requests.partition,
            offset=requests.offset,
            event_time_ms=requests.event_time_ms,
            request_index=batch.request_index,
            item_index=batch.item_index,
            settles=sum((bit * label.settles.astype(np.uint32) for bit, label in bits), none),
            labels=sum((bit * label.value.astype(np.uint32) for bit, label in bits), none),
        )
        self._step += 1
        settled = self._marks.settle(self._step, rows)
        self._marks.acknowledge(self._step)
        return Learned(batch, settled)

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
