"""Network: hosts on this machine, each a network namespace of its own on one bridge, whose cable can be pulled."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from streamlearn.errors import ServiceError
from tools.services.process import OwnedProcess

__all__ = ["APART", "Network", "apart"]

APART = "STREAMLEARN_CHAOS_APART"
"""Set in a process that has a network namespace of its own."""

_NET, _BRIDGE, _WAIT_S_MAX = "10.77.0", "hosts", 20.0
_CLONE_NEWNET = 0x4000_0000  # of sched.h


def apart(words: Sequence[str]) -> list[str]:
    """Return a command that runs another one in a new network namespace, in which it may make more.

    That needs root, or user namespaces. Whatever is made there ends with the command.
    """
    return ["unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "--net", *words]


class Network:
    """Hosts beside this process, which needs a network namespace of its own: see `apart`.

    Args:
        names: The names of the hosts.
        place: A folder for logs.

    Raises:
        ServiceError: This machine lets nobody make namespaces, or lacks `ip`.
    """

    def __init__(self, names: Sequence[str], place: Path) -> None:
        self._stack, self._holders = ExitStack(), dict[str, OwnedProcess]()
        self.addresses = {name: f"{_NET}.{number}" for number, name in enumerate(names, 1)}
        try:
            _ip("link set lo up", f"link add {_BRIDGE} type bridge")
            _ip(f"addr add {_NET}.250/24 dev {_BRIDGE}", f"link set {_BRIDGE} up")
            for name, address in self.addresses.items():
                self._join(name, address, place)
        except BaseException:
            self.close()
            raise

    def command(self, name: str, words: Sequence[str]) -> list[str]:
        """Return a command that runs another one on a host."""
        return ["nsenter", "--target", str(self._holders[name].pid), "--net", "--", *words]

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Put this thread on a host within the block. Sockets and threads that it makes stay there."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(Path(f"/proc/{self._holders[name].pid}/ns/net"))
            yield
        finally:
            _set_namespace(own)
            os.close(own)

    def part(self, *names: str) -> None:
        """Let no packet pass between these hosts; all others reach them as before."""
        for name in names:
            _ip(f"link set v-{name} type bridge_slave isolated on")

    def join(self, *names: str) -> None:
        """Let packets pass between these hosts again."""
        for name in names:
            _ip(f"link set v-{name} type bridge_slave isolated off")

    def cut(self, name: str) -> None:
        """Pull the cable of a host."""
        _ip(f"link set v-{name} down")

    def mend(self, name: str) -> None:
        """Plug it in again."""
        _ip(f"link set v-{name} up")

    def close(self) -> None:
        """Remove all hosts."""
        self._stack.close()

    def _join(self, name: str, address: str, place: Path) -> None:
        holder = OwnedProcess(f"host-{name}", ["unshare", "--net", "sleep", "infinity"], place)
        self._stack.callback(holder.kill)
        self._holders[name] = holder
        until_s, own = time.monotonic() + _WAIT_S_MAX, Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{holder.pid}/ns/net").readlink() == own:
            if not holder.is_alive() or time.monotonic() > until_s:
                holder.fail(f"no network namespace for the host {name}")
            time.sleep(0.01)
        _ip(f"link add v-{name} type veth peer name eth0 netns {holder.pid}", f"link set v-{name} master {_BRIDGE} up")
        for words in (f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _run(self.command(name, ["ip", *words.split()]))


def _enter(namespace: Path) -> None:
    file = os.open(namespace, os.O_RDONLY)
    try:
        _set_namespace(file)
    finally:
        os.close(file)


def _set_namespace(file: int) -> None:
    # `os.setns` is there from Python 3.12 on.
    if ctypes.CDLL(None, use_errno=True).setns(file, _CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "setns")


def _ip(*commands: str) -> None:
    for words in commands:
        _run(["ip", *words.split()])


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_WAIT_S_MAX)
    except FileNotFoundError:
        message = f"{command[0]} is not installed, and hosts need it"
        raise ServiceError(message, help="install iproute2 and util-linux") from None
    if done.returncode:
        message = f"`{' '.join(command)}` ended with status {done.returncode}: {done.stderr.strip()}"
        raise ServiceError(message, help="hosts need network namespaces: run this as root, or allow user namespaces")
