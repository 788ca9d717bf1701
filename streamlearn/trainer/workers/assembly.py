"""Assembly: how the processes of a group find each other, before TensorFlow begins in any of them."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from streamlearn.access.address import host_and_port, reached_at
from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import ConfigError, TrainingFailed, UsageError
from streamlearn.loopback import is_loopback
from streamlearn.pulse import PULSE
from streamlearn.settings.workers import WorkersSettings
from streamlearn.trainer.device import device_of
from streamlearn.trainer.workers.collective import CollectiveSums
from streamlearn.trainer.workers.leader_link import LeaderLink
from streamlearn.trainer.workers.messages import Answer, Ask, Group, Idle, Leave, Members, Report, Setup, WorkerState

__all__ = ["Assembly", "assemble", "held_address", "join_group"]

_LOG = logging.getLogger("streamlearn.trainer.workers")
_LOOK_S, _LOOPBACK, _ALL_INTERFACES = 0.2, "127.0.0.1", ("0.0.0.0:", "[::]:")


class Assembly:
    """The trainer and the workers of a group. Until all have come, it answers workers in place of the leader.

    Attributes:
        sums: How they sum, once all have come.
    """

    sums: CollectiveSums

    def __init__(self, setup: Setup, address: str, settings: WorkersSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._setup, self._own, self._settings, self._clock = setup, address, settings, clock
        self._others = dict[str, tuple[str, str]]()  # the name and the address of each worker, by its id
        self._changed, self._has_begun, self._begin_s = threading.Condition(), False, 0.0
        self.on_change: Callable[[], None] = lambda: None
        self.connected: Callable[[], set[str]] = set

    @property
    def addresses(self) -> list[str]:
        """Where TensorFlow's servers of all listen, the trainer's first; empty while some are missing."""
        is_whole = len(self._others) + 1 == self._settings.members
        return [self._own, *(address for _, address in self._others.values())] if is_whole else []

    def members(self) -> Members:
        """See `Leader`."""
        names = ("leader", *(name for name, _ in self._others.values()))
        return Members([WorkerState(name, 0, 0.0, 0) for name in names], wanted=self._settings.members)

    def answer(self, ask: Ask, *, always: bool = False) -> tuple[Answer, tuple[()]] | None:
        """Answer a worker as the leader does: once all have come, with who they are."""
        with self._changed:
            if ask.address and not self.addresses:
                self._admit(ask)
            other = self.turn_away(ask)
            if other is not None and (other.addresses or not ask.address):
                return other, ()
        return (Idle(0, 0, 0), ()) if always else None

    def turn_away(self, ask: Ask) -> Group | None:
        """Return the answer for one that asks for the members, is none of them, or has to start again."""
        is_over = hasattr(self, "sums") and bool(self.sums.lost)
        if ask.worker in self._others and not ask.address and not is_over:
            return None
        return Group([] if is_over else self.addresses)

    def report(self, report: Report, logits: object) -> None:
        """Ignore what a worker of an earlier group has learned."""

    def leave(self, leave: Leave) -> None:
        """Note that one asks for nothing more; if it is a member, nobody waits for it."""
        with self._changed:
            if not self.addresses:
                self._others.pop(leave.worker, None)
            self._has_begun |= leave.worker in self._others

    def wait(self, stop: threading.Event) -> None:
        """Wait until all have come.

        Raises:
            TrainingFailed: `stop` was set before.
        """
        members = self._settings.members
        _LOG.info("training waits until %d members are there, this process included", members)
        with self._changed:
            while not self._changed.wait_for(lambda: self.addresses, _LOOK_S):
                PULSE.beat()
                if stop.is_set():
                    message = f"training was stopped when {len(self._others) + 1} of {members} members were there"
                    raise TrainingFailed(message, help="start as many workers as workers.members, less one")
            self._begin_s = self._clock.monotonic_s()

    def shares(self, own: str) -> dict[str, range]:
        """Return which slices of a step each member learns, by worker; `own` is the trainer's id."""
        count = self._settings.slices // self._settings.members
        return {worker: range(at * count, (at + 1) * count) for at, worker in enumerate((own, *self._others))}

    def check(self, present: Collection[str]) -> None:
        """Check that all members are there; until all were, each has some time to build its model.

        Raises:
            GroupLost: One of them is gone.
        """
        missing = [name for worker, (name, _) in self._others.items() if worker not in present]
        is_late = self._clock.monotonic_s() - self._begin_s > self._settings.slice_wait_s_max
        self._has_begun |= not missing
        if missing and (self._has_begun or is_late):
            raise self.sums.lose("gone are: " + ", ".join(missing))

    def _admit(self, ask: Ask) -> None:
        host_and_port("the address of a worker", ask.address)
        if ask.setup != self._setup:
            message = f"worker {ask.name} has another release, other features, settings or devices than the trainer"
            raise UsageError(message, help="give all workers the trainer's application, settings, release and devices")
        if _is_local(ask.address) != _is_local(self._own):
            message = f"worker {ask.name} would listen at {ask.address}, and the trainer at {self._own}"
            raise UsageError(message, help="give all workers one address of the trainer, which all machines reach")
        connected = self.connected() | {ask.worker}
        self._others = {worker: one for worker, one in self._others.items() if worker in connected}
        self._others[ask.worker] = (ask.name, ask.address)
        self._changed.notify_all()


@contextmanager
def assemble(
    folder: AppFolder, setup: Setup, *, has_tls: bool, clock: Clock = SYSTEM_CLOCK
) -> Iterator[Assembly]:  # fmt: skip
    """Yield an assembly to wait for, in which this process is the trainer; after the block it can sum.

    Raises:
        ConfigError: The settings forbid it.
        GroupLost: TensorFlow cannot listen.
    """
    settings = folder.settings.workers
    if not settings.listen:
        message = 'workers.reduce is "nccl", but workers.listen is empty: no worker can join'
        raise ConfigError(message, help="set workers.listen to where workers find the trainer")
    way = next((one for one in settings.listen if not _is_local(one)), settings.listen[0])
    with held_address(folder, reached_at(way) if way.startswith(_ALL_INTERFACES) else way, has_tls=has_tls) as address:
        assembly = Assembly(_with_device(setup, folder), address, settings, clock)
        yield assembly
    assembly.sums = _sums(folder, assembly.addresses, 0, clock)


def join_group(
    folder: AppFolder, setup: Setup, link: LeaderLink, leader: str, stop: threading.Event
) -> CollectiveSums | None:  # fmt: skip
    """Wait until the trainer has all workers, and become a member; None if `stop` was set. Raises as `assemble`."""
    with held_address(folder, leader) as address:
        link.setup = _with_device(setup, folder)
        while address not in (addresses := link.assemble(address)):
            if stop.wait(_LOOK_S):  # a trainer that has another group answers at once
                return None
    return _sums(folder, addresses, addresses.index(address))


def _sums(folder: AppFolder, addresses: list[str], own: int, clock: Clock = SYSTEM_CLOCK) -> CollectiveSums:
    settings, device = folder.settings.workers, device_of(folder.settings.trainer)
    slices, wait_s_max = settings.slices // settings.members, settings.slice_wait_s_max
    return CollectiveSums(addresses, own, slices, device=device, wait_s_max=wait_s_max, clock=clock)


def _with_device(setup: Setup, folder: AppFolder) -> Setup:
    """Return what must be equal in all members before a model is built."""
    return Setup(setup.settings, "GPU" if "GPU" in device_of(folder.settings.trainer) else "CPU")


def _is_local(address: str) -> bool:
    return address.startswith("unix:") or bool(is_loopback(address.rpartition(":")[0]))


@contextmanager
def held_address(folder: AppFolder, way: str, *, has_tls: bool = False) -> Iterator[str]:
    """Yield this machine's address on the way to another one, with a port that nobody else takes within the block.

    Raises:
        ConfigError: The settings do not allow a group, or not at this address.
    """
    settings = folder.settings.workers
    if settings.slices % settings.members:
        message = f"workers.slices is {settings.slices}, and {settings.members} members cannot share them equally"
        raise ConfigError(message, help="set workers.slices to a multiple of workers.members")
    if not settings.leader_learns:
        message = 'workers.leader_learns is off, but with workers.reduce = "nccl" the trainer is a member of the group'
        raise ConfigError(message, help='leave workers.leader_learns on, or set workers.reduce = "shards"')
    if (has_tls or folder.settings.ps.tls_ca) and not _is_local(way):
        message = f"TLS is on, but TensorFlow would send dense gradients without it on the way to {way}"
        raise ConfigError(
            message, help='set workers.reduce = "shards", or give the network to the job and turn TLS off'
        )
    own = _LOOPBACK
    try:
        if not way.startswith("unix:"):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((way.rpartition(":")[0].strip("[]"), 9))  # sends nothing
                own = probe.getsockname()[0]
    except OSError as error:
        message = f"{way} cannot be reached by IPv4: {error.strerror or error}"
        raise ConfigError(message, help="TensorFlow's servers have IPv4 addresses: give one of the trainer") from None
    with socket.socket() as holder:
        holder.bind(("", 0))
        yield f"{own}:{holder.getsockname()[1]}"
