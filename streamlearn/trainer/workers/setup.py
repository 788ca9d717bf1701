"""The setup of a job: what must be equal in all its processes, and how a leader and a worker are made from it."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np

from streamlearn import __version__
from streamlearn.access.renewal import GivenToken
from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import (
    ConfigError,
    EpochOver,
    PushUnsure,
    ShardNotReady,
    ShardRefused,
    StreamlearnError,
)
from streamlearn.features import PackSide
from streamlearn.models import model_of
from streamlearn.ps import PsClient
from streamlearn.pulse import PULSE
from streamlearn.table import declared_tables
from streamlearn.trainer.learner import Learner, Packed
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.workers.assembly import assemble, join_group
from streamlearn.trainer.workers.leader import Leader
from streamlearn.trainer.workers.leader_link import LeaderLink
from streamlearn.trainer.workers.messages import Setup
from streamlearn.trainer.workers.slice_worker import SUMS_KEPT, Clients, SliceWorker
from streamlearn.trainer.workers.slices import SliceRule, slice_rows
from streamlearn.trainer.workers.worker_door import WorkerDoor

__all__ = ["lead", "setup_of", "work"]

_LOG = logging.getLogger("streamlearn.trainer.workers")
_PROBE_USERS = 64


def setup_of(folder: AppFolder, learner: Learner, *, learns: bool = True) -> Setup:
    """Return what must be equal in all processes of a job; call it before the learner has learned.

    A model whose code differs, or a processor that computes other numbers, has other bits.
    """
    settings, bits, unlearned = folder.settings, hashlib.sha256(), _unlearned(folder)
    if not learns:
        return unlearned
    rows = slice_rows(settings.trainer.step_rows, settings.workers.slices)
    found = learner.gradients(_probe(folder, rows), 0, rows, learner.weights())
    for array in (found.logits, found.of_weights, *found.of_rows):
        bits.update(array.tobytes())
    return Setup(unlearned.settings, bits.hexdigest())


def _unlearned(folder: AppFolder) -> Setup:
    """Return what must be equal and is known without a learner."""
    settings, workers = folder.settings, folder.settings.workers
    parts = (
        __version__, folder.app.model_fingerprint, settings.trainer, settings.tables, workers.slices, workers.reduce,
        workers.members, settings.ps.encoding,
    )  # fmt: skip
    return Setup(hashlib.sha256(msgspec.json.encode(parts)).hexdigest(), "")


def _probe(folder: AppFolder, rows: int) -> Packed:
    app, rng = folder.app, np.random.default_rng(7)
    plan, users = app.features.pack, min(_PROBE_USERS, rows)

    def side(of: PackSide, count: int) -> tuple[np.ndarray, np.ndarray]:
        shapes = ((count, of.flat_width), (count, of.sequence_length, of.sequence_width))
        flat, sequence = (rng.normal(0, 0.1, shape).astype(np.float32) for shape in shapes)
        return flat, sequence

    targets = np.zeros((rows, len(app.labels), 4), np.float32)
    targets[:, :, 0], targets[:, :, 1] = rng.integers(0, 2, targets.shape[:2]), 1.0
    index = np.sort(rng.integers(0, users, rows)).astype(np.int32)
    return Packed(*side(plan.user, users), *side(plan.item, rows), index, targets, rows)


def _check_shards(folder: AppFolder) -> None:
    if not folder.settings.ps.addresses:
        message = f"workers.slices is {folder.settings.workers.slices}, but ps.addresses is empty"
        help = "slices meet at shards of their own: start `streamlearn ps`, and set ps.addresses to where they listen"
        raise ConfigError(message, help=help)


def _connect(folder: AppFolder, token: GivenToken | None) -> PsClient:
    settings = folder.settings
    _check_shards(folder)
    return PsClient.connect(folder.app.name, declared_tables(folder.app.tables, settings.tables), settings.ps, token)


def lead(
    folder: AppFolder,
    client: PsClient,
    token: GivenToken | None,
    tls: tuple[Path, Path] | None,
    ends: ExitStack,
    *,
    stop: threading.Event,
    clock: Clock = SYSTEM_CLOCK,
) -> Callable[[Learner, Rows], Leader]:
    """Return what makes the leader of a job, which workers can join until `ends` is closed.

    If a group sums gradients, this waits until all its workers are there, or `stop` is set.
    """
    app, settings, group = folder.app, folder.settings, None
    if not (settings.workers.leader_learns or settings.workers.listen):
        message = "workers.leader_learns is off and workers.listen is empty: no process could learn"
        raise ConfigError(message, help="set workers.listen to where workers find the trainer")
    if settings.workers.reduce == "nccl":
        _check_shards(folder)
        with (
            assemble(folder, _unlearned(folder), has_tls=tls is not None, clock=clock) as group,
            WorkerDoor(group, folder, token=token, tls=tls, clock=clock),
        ):
            PULSE.ready()  # workers may start
            group.wait(stop)

    def make(learner: Learner, rows: Rows) -> Leader:
        sums = _connect(folder, token) if group is None else group.sums
        ends.enter_context(sums)
        slices = Rows(app, client, slice_rows(settings.trainer.step_rows, settings.workers.slices), settings.tables)
        clients = Clients(client, sums)
        setup = setup_of(folder, learner, learns=settings.workers.leader_learns)
        rule = SliceRule.of(settings.trainer)
        wanted = settings.up.workers and settings.up.workers + settings.workers.leader_learns
        leader = Leader(
            learner, slices, clients, settings.workers, setup, rule=rule, group=group, wanted=wanted, clock=clock
        )
        if settings.workers.listen:
            ends.enter_context(WorkerDoor(leader, folder, token=token, tls=tls, clock=clock))
        return leader

    return make


def work(
    folder: AppFolder,
    address: str,
    stop: threading.Event,
    *,
    token: GivenToken | None = None,
    show: Callable[[str], None] = lambda text: None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Learn slices for the leader at an address until `stop` is set.

    Raises:
        ShardUnreachable: The leader or a shard does not answer.
        ShardRefused: The leader refuses this worker, because something differs.
        GroupLost: The group that sums gradients is over.
    """
    app, settings, group = folder.app, folder.settings, None
    with ExitStack() as ends:
        link = ends.enter_context(LeaderLink(folder, address, token, stop=stop, clock=clock))
        if settings.workers.reduce == "nccl":
            group = join_group(folder, _unlearned(folder), link, address, stop)
            if group is None:
                return
        learner = Learner(app, model_of(folder), settings.trainer)
        link.setup = setup_of(folder, learner)
        sums = group or _connect(folder, token)
        ends.enter_context(sums)
        clients = Clients(ends.enter_context(_connect(folder, token)), sums)
        rows = Rows(app, clients.rows, slice_rows(settings.trainer.step_rows, settings.workers.slices), settings.tables)
        rule = SliceRule.of(settings.trainer)
        worker = SliceWorker(link.worker, learner, rows, clients.sums, link, rule=rule, clock=clock)
        PULSE.ready()
        try:
            while not stop.is_set():
                if link.welcome is None:
                    link.ask(0, 0)
                    continue
                (welcome, state), link.welcome = link.welcome, None
                try:
                    learner.load_state(state, welcome.steps)
                    clients.join(welcome.epoch)
                    show(f"learns slices of {app.name} from step {welcome.applied}")
                    worker.begin(welcome.session, welcome.applied, welcome.slices)
                    worker.learn(stop)
                except (EpochOver, PushUnsure, ShardNotReady) as error:
                    if group is not None:
                        raise group.lose(error.message) from error
                    _LOG.warning("%s; asking the leader again", error.message)
                except ShardRefused as error:
                    if not _is_behind(link, worker):
                        raise
                    _LOG.warning("%s; this worker was behind, and takes the newest weights", error.message)
        except StreamlearnError as error:
            link.leave(error.message)
            if not stop.is_set():
                raise
        link.leave()


def _is_behind(link: LeaderLink, worker: SliceWorker) -> bool:
    """Whether the others have gone on without a worker, so that shards refuse sums that it gives or asks for."""
    if link.welcome is None:
        link.ask(worker.session, worker.applied, leaves=True)
    if link.welcome is None:
        link.ask(0, 0)
    elif link.welcome[0].session == worker.session:
        return True
    return link.welcome is not None and link.welcome[0].applied >= worker.applied + SUMS_KEPT
