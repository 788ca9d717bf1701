"""How elements get from step to step: as bytes, or by tickets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from streamlearn.errors import PipelineFailed
from streamlearn.ingest.beam.handover import Handover, Tickets, close_tickets, open_tickets


def test_an_element_is_given_to_one_taker_once() -> None:
    tickets = Tickets()
    with ThreadPoolExecutor(4) as pool:
        given = list(pool.map(tickets.put, range(1_000)))
        assert len(tickets) == len(set(given)) == 1_000
        assert list(pool.map(tickets.take, reversed(given))) == list(reversed(range(1_000)))
    assert len(tickets) == 0
    with pytest.raises(PipelineFailed, match="another process, or was delivered twice") as caught:
        tickets.take(given[0])
    assert "LOOPBACK" in caught.value.help


def test_a_ticket_of_another_process_is_refused() -> None:
    here, elsewhere = Tickets(), Tickets()
    here.put("mine")
    with pytest.raises(PipelineFailed, match="another process"):
        here.take(elsewhere.put("not mine"))
    assert len(here) == 1


def test_elements_go_as_bytes_or_stay() -> None:
    tickets = Tickets()
    as_bytes, by_ticket = Handover(str.encode, bytes.decode), Handover(str.encode, bytes.decode, tickets)
    assert as_bytes.give("words") == b"words"
    assert as_bytes.take(b"words") == "words"
    element = "words"
    assert by_ticket.take(by_ticket.give(element)) is element


def test_a_runs_tickets_are_its_own_and_end_with_it() -> None:
    url = "memory://tickets"
    first = open_tickets(url, 1)
    assert open_tickets(url, 1) is first
    assert open_tickets(url, 2) is not first
    first.put("left over")
    for run in (1, 2, 2):
        close_tickets(url, run)
    assert len(open_tickets(url, 1)) == 0
    close_tickets(url, 1)
