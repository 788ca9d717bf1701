"""A service: a server process with a folder and ports, which can be stopped, killed, paused and started again.

Subclasses for the servers give the command and the check that the server answers.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, TypeVar

from streamlearn.errors import ServiceError
from tools.services.ports import LOOPBACK, FindPorts, PortTaken, is_taken
from tools.services.process import OwnedProcess

__all__ = ["Service", "launch_on"]

_LAUNCHES_MAX = 5
_Launched = TypeVar("_Launched", bound="Service")


class Service(ABC):
    """A server on the loopback address that never outlives the process that started it.

    Subclasses have a `start` that fetches files, picks free ports and launches. As a context manager it stops at the
    end.

    Args:
        folder: The folder of data and log, which is kept.
        ports: Its ports; clients use the first.
    """

    name: ClassVar[str]
    ready_wait_s_max: ClassVar[float] = 180.0
    stop_wait_s_max: ClassVar[float] = 10.0

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self.folder = folder
        self.ports = tuple(ports)
        self.ready_s = 0.0
        self._process: OwnedProcess | None = None

    @property
    @abstractmethod
    def version(self) -> str:
        """The server's version."""

    @abstractmethod
    def _prepare(self) -> Sequence[str]:
        """Write the server's files and return its command."""

    @abstractmethod
    def _answers(self, pid: int) -> bool:
        """Return whether the server with this pid, and not another on its port, works. Must be brief."""

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"{LOOPBACK}:{self.ports[0]}"

    @property
    def pid(self) -> int:
        """The running server's process id."""
        return self._running().pid

    @property
    def log(self) -> Path:
        """The server's log, appended to at every start."""
        return self.folder / f"{self.name}.log"

    def launch(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            PortTaken: Another process listens on one of the ports.
            ServiceError: The server ended or did not answer within `ready_wait_s_max`; with the end of its log.
        """
        assert not self.is_running(), f"{self.name} is already running"
        began_s = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        process = OwnedProcess(self.name, self._prepare(), self.folder, stop_wait_s_max=self.stop_wait_s_max)
        try:
            process.wait_until(lambda: self._answers(process.pid), self.ready_wait_s_max)
        except ServiceError as error:
            process.stop()
            taken = [port for port in self.ports if is_taken(port)]
            if taken:
                message = f"{self.name} could not start: port {taken[0]} of {LOOPBACK} is taken\n{error.message}"
                raise PortTaken(message, help="end the process that listens there, or choose another port") from error
            raise
        except BaseException:
            process.stop()
            raise
        self._process = process
        self.ready_s = time.monotonic() - began_s

    def is_running(self) -> bool:
        """Return whether the server's process exists; a paused one does."""
        return self._process is not None and self._process.is_alive()

    def check(self) -> None:
        """Check that the server has not ended by itself.

        Raises:
            ServiceError: It has; with its exit status and the end of its log.
        """
        if self._process is not None and not self._process.is_alive():
            message = f"{self.name} at {self.address} ended by itself with status {self._process.exit_status}"
            self._process.fail(message)

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL after a bounded wait. Does nothing if the server is not running."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        """Send SIGKILL and wait for the end; data and ports stay for `restart`."""
        self._running().kill()
        self._process = None

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same ports and data.

        Raises:
            ServiceError: As for `launch`.
        """
        self.stop()
        self.launch()

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open without answers until `resume`."""
        self._running().pause()

    def resume(self) -> None:
        """Send SIGCONT after a `pause`."""
        self._running().resume()

    def _running(self) -> OwnedProcess:
        if self._process is None:
            message = f"{self.name} is not running"
            raise ServiceError(message, help="start it first")
        return self._process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def launch_on(find_ports: FindPorts, count: int, make: Callable[[Sequence[int]], _Launched]) -> _Launched:
    """Launch a service on free ports; retry on others if a process takes one of them before the service does.

    Args:
        find_ports: Returns ports.
        count: Number of ports.
        make: Returns the service for these ports, not launched.

    Raises:
        PortTaken: A port was taken at every attempt.
        ServiceError: As for `Service.launch`.
    """
    for _ in range(_LAUNCHES_MAX - 1):
        service = make(find_ports(count))
        try:
            service.launch()
        except PortTaken:
            continue
        return service
    service = make(find_ports(count))
    service.launch()
    return service
