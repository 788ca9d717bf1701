"""Jobs whose processes are killed: the bytes of their versions, and how soon they learn again."""

from __future__ import annotations

import random
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.trainer_samples import STEP_SAMPLES, Workload
from benchmarks.trainer_topic import batches, samples_folder
from benchmarks.workers.job import Job, Process, made, running, waited
from streamlearn.samples import SampleCodec
from streamlearn.topics import TopicSettings, create_topic
from streamlearn.versions.format.manifest import decode_manifest

__all__ = ["bits", "recovery"]

Note = Callable[[str], None]
_SLICES, _CUT_STEPS = 4, 40
_KINDS = ("rows", "optimizer", "gone", "dense", "dense_optimizer", "marks")
_RUN_S_MAX = 1_800.0
_KEYS, _RATE_PER_S, _STREAM_S, _MESSAGE_ROWS = 100_000, 1_000, 600, 100


class _Struck(NamedTuple):
    """A job that learned all samples while processes were killed."""

    kills: int
    files: Mapping[int, frozenset[tuple[object, ...]]]  # by the steps that a version has learned
    labels: float  # how many its last version has learned, each once


def bits(place: Path, note: Note, *, quick: bool) -> dict[str, float]:
    """Return whether the versions of strict jobs with 1, 2 and 4 workers have equal files.

    In the jobs with 2 and 4 workers, a worker, the leader or a shard is killed again and again, and started again.
    """
    folder, samples = place / "bits", 8 if quick else 40
    settings: dict[str, dict[str, object]] = {
        "workers": {"slices": _SLICES},
        "trainer": {"step_rows": 256, "xla": "off"},
    }
    made(folder, samples, settings)
    kills = {1: 0, 2: 3 if quick else 30, 4: 3 if quick else 30}
    found = {}
    for workers, count in kills.items():
        shutil.rmtree(folder / "store", ignore_errors=True)
        found[workers] = _strike(folder, workers, count, random.Random(workers))
        note(f"{workers} workers, {found[workers].kills} kills: {len(found[workers].files)} cuts")
    alone = found[1]
    equal = [
        other.files.get(steps) == files
        for other in (found[2], found[4])
        for steps, files in alone.files.items()
        if steps in other.files
    ]
    return {
        "bits_equal_w1_w2_w4": float(all(equal) and len(equal) >= 2 * len(alone.files) - 2),
        "equal_cuts": float(len(equal)),
        "kills": float(sum(one.kills for one in found.values())),
        "labels_lost_or_doubled": max(abs(one.labels - samples * STEP_SAMPLES) for one in found.values()),
    }


def _strike(folder: Path, workers: int, kills: int, chance: random.Random) -> _Struck:
    with running(folder, 2) as job:
        others = [job.work() for _ in range(workers - 1)]
        leader = job.train(BENCH_WORKERS=workers, BENCH_CUT_STEPS=_CUT_STEPS)
        killed, deadline_s = 0, time.monotonic() + _RUN_S_MAX
        while leader.runs and time.monotonic() < deadline_s:
            if killed < kills and _has_progressed(job, killed):
                killed += 1
                role = chance.choice(("worker", "worker", "leader", "shard"))
                if role == "worker":
                    number = chance.randrange(len(others))
                    others[number].kill()
                    others[number] = job.work()
                elif role == "leader":
                    leader.kill()
                    leader = job.train(BENCH_CUT_STEPS=_CUT_STEPS)
                else:
                    number = chance.randrange(len(job.shards))
                    job.shards[number].kill()
                    job.shards[number] = job.shard(number, job.addresses[number])
            time.sleep(0.02)
        if leader.runs or leader.process.returncode:
            waited(lambda: "", leader, 0.0)
    return _Struck(killed, *_versions(folder))


def _has_progressed(job: Job, killed: int) -> bool:
    """Whether some steps were learned since the last kill, so that every kill strikes a job at work."""
    return len(job.steps()) > 25 * (killed + 1)


def _versions(folder: Path) -> tuple[dict[int, frozenset[tuple[object, ...]]], float]:
    """Return the files of all versions by the steps that they have learned, and the labels of the last one."""
    manifests = [decode_manifest(file.read_bytes(), str(file)) for file in (folder / "store").rglob("manifest.json")]
    files: dict[int, frozenset[tuple[object, ...]]] = {
        int(manifest.metrics.get("steps", 0.0)): frozenset(
            (file.kind, file.table, file.shard, file.number, file.rows, file.sha256)
            for file in manifest.files
            if file.kind in _KINDS
        )
        for manifest in manifests
    }
    last = max(manifests, key=lambda manifest: manifest.version)
    return files, last.metrics.get("labels_learned", 0.0)


def recovery(place: Path, note: Note, *, quick: bool) -> dict[str, float]:
    """Return the seconds until a job at 1,000 samples/s learns again after a kill, and until a worker has joined."""
    folder = place / "recovery"
    settings: dict[str, dict[str, object]] = {
        "workers": {"slices": 2},
        "publisher": {"publish_interval_s": 1.0},
        "trainer": {"order": "arrival", "step_rows": 256, "step_wait_s": 0.5, "xla": "off"},
    }
    made(folder, 0, settings)
    lost_s, joined_s, again = list[float](), list[float](), 0
    with _stream(folder), running(folder, 1) as job:
        worker = job.work()
        leader = job.train(ends=False, BENCH_WORKERS=2)
        for number in range(1 if quick else 3):
            _learns(job, leader, 20)
            at_s = time.monotonic()
            worker.kill()
            _learns(job, leader, 2)
            lost_s.append(_first_after(job, at_s))
            note(f"a worker was killed: the job learned again after {lost_s[-1]:.2f} s")
            before = _relearned(job)
            times = folder / f"join-{number}"
            worker = job.work(BENCH_TIMES=times)
            waited(partial(_has_learned, times), worker)
            asked, learned = (float(line.split()[0]) for line in times.read_text().splitlines()[:2])
            joined_s.append(learned - asked)
            again += _relearned(job) - before
            note(f"a worker has joined after {joined_s[-1]:.2f} s")
    return {
        "recovery_worker_s": statistics.median(lost_s),
        "join_s": statistics.median(joined_s),
        "join_relearned_steps": float(again),
    }


def _has_learned(times: Path) -> str:
    return "learned" if times.exists() and "learned" in times.read_text() else ""


def _learns(job: Job, leader: Process, steps: int) -> None:
    """Wait until a job has learned some more steps."""
    end = len(job.steps()) + steps
    waited(lambda: "learned" if len(job.steps()) >= end else "", leader)


def _first_after(job: Job, at_s: float) -> float:
    """Return the time from a kill to the first step after the job went back, or after the longest gap if it did not."""
    known = job.steps()
    before, steps = ([entry for entry in known if (entry[0] > at_s) is is_after] for is_after in (False, True))
    back = [later for earlier, later in pairwise(steps) if later[1] <= earlier[1]]
    gap = max(pairwise((*before[-1:], *steps)), key=lambda pair: pair[1][0] - pair[0][0])
    return (back[0] if back else gap[1])[0] - at_s


def _relearned(job: Job) -> int:
    steps = [entry[1] for entry in job.steps()]
    return sum(later <= earlier for earlier, later in pairwise(steps))


@contextmanager
def _stream(folder: Path) -> Iterator[None]:
    """Write samples at 1,000 a second into the topic of an application."""
    base = samples_folder(folder, _KEYS)
    codec = SampleCodec(base.app, base.settings.samples)
    steps = Workload(_KEYS, 1).steps(_RATE_PER_S * _STREAM_S // STEP_SAMPLES)
    stop = threading.Event()
    with create_topic(base.topic_url("samples"), TopicSettings(partitions=1), base.access) as topic:

        def write() -> None:
            with topic.writer() as writer:
                for batch in batches(base.app, steps, _MESSAGE_ROWS):
                    writer.send(0, codec.encode(batch))
                    writer.flush()
                    if stop.wait(len(batch) / _RATE_PER_S):
                        return

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
