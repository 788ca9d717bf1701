"""The port filter: only the hosts that it names reach a port that listens on all interfaces."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from streamlearn.errors import ServiceError
from streamlearn.supervision.ports import free_ports
from streamlearn.trainer.workers.port_filter import filter_port

_MADE_S, _REFUSED_S = 60.0, 0.1


def test_only_the_named_hosts_reach_a_port_also_by_connections_from_before() -> None:
    with ExitStack() as ends:
        listener = ends.enter_context(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True))
        port = listener.getsockname()[1]

        def says(source: str, wait_s: float, one: socket.socket | None = None) -> bytes | None:
            """What arrives over a connection from a host; None if it was not made."""
            if one is None:
                one = ends.enter_context(socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET))
                one.settimeout(wait_s)
                one.bind((source, 0))
                try:
                    one.connect((source if ":" in source else "127.0.0.1", port))
                except TimeoutError:
                    return None
                earlier.append((one, ends.enter_context(listener.accept()[0])))
            (accepted,) = [accepted for own, accepted in earlier if own is one]
            accepted.settimeout(wait_s)
            one.sendall(b"x")
            try:
                return accepted.recv(1)
            except TimeoutError:
                return b""

        earlier = list[tuple[socket.socket, socket.socket]]()
        assert [says(host, _MADE_S) for host in ("127.0.0.1", "127.0.0.2", "::1")] == [b"x"] * 3
        filter_port(port, ["127.0.0.1", "127.0.0.3"])
        assert [says(host, _MADE_S) for host in ("127.0.0.1", "127.0.0.3")] == [b"x"] * 2
        assert [says(host, _REFUSED_S) for host in ("127.0.0.2", "::1")] == [None] * 2
        waits_s = (_MADE_S, _REFUSED_S, _REFUSED_S)
        assert [says("", wait_s, one) for wait_s, (one, _) in zip(waits_s, earlier, strict=False)] == [b"x", b"", b""]


def test_a_port_at_which_nothing_listens_is_an_error() -> None:
    with pytest.raises(ServiceError, match="nothing listens there"):
        filter_port(free_ports(1)[0], ["127.0.0.1"])
