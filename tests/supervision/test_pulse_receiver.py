"""Messages of a process: its own arrive, and no other user can send any."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from streamlearn.supervision.process import PulseReceiver


def test_only_the_user_of_a_supervisor_can_reach_its_socket_and_nothing_stays_behind() -> None:
    receiver = PulseReceiver()
    place = Path(receiver.environ(1.0)["NOTIFY_SOCKET"])
    # An abstract socket has no place: any process of the machine may fill its queue.
    assert stat.S_ISSOCK(place.stat().st_mode)
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert place.parent.stat().st_uid == os.getuid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"READY=1", str(place))
    assert list(receiver.messages(os.getpid())) == [("READY", "1")]
    receiver.close()
    assert not place.parent.exists()
