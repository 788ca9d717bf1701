"""Where other processes reach what listens: the address that a node registers."""

from __future__ import annotations

import socket

import pytest

from streamlearn.access.address import reached_at


@pytest.mark.parametrize("address", ["127.0.0.1:8001", "[::1]:8001", "10.1.2.3:80", ""])
def test_an_address_of_one_interface_is_its_own(address: str) -> None:
    assert reached_at(address) == address


def test_of_all_interfaces_an_address_is_given_that_answers() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        host, _, port = reached_at(f"0.0.0.0:{listener.getsockname()[1]}").rpartition(":")
        assert host != "0.0.0.0"
        socket.create_connection((host, int(port)), timeout=60).close()


def test_without_a_network_it_is_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(socket.socket, "connect", none)
    assert (reached_at("0.0.0.0:8001"), reached_at("[::]:8001")) == ("127.0.0.1:8001", "[::1]:8001")
