"""The switches of a served name: one record decides which of two applications answers."""

from __future__ import annotations

import threading

import pytest

from streamlearn.errors import MoveRefused, VersionDefect
from streamlearn.versions import Store
from streamlearn.versions.pointer.switch_log import SwitchLog


def test_the_served_name_answers_until_a_switch_says_otherwise(store: Store) -> None:
    log = SwitchLog(store, "shop")
    assert log.newest().why_aside("shop") == ""
    assert log.newest().why_aside("shop2") == "shop answers the callers of this model (switch 0)"
    assert log.begin("shop", "shop2", by="me").current == "shop"
    assert log.switch("shop2", by="me", reason="good figures").why_aside("shop2") == ""
    newest = SwitchLog(store, "shop").newest()
    assert (newest.seq, newest.current, newest.other, newest.reason) == (2, "shop2", "shop", "good figures")
    assert log.switch("shop", by="me").current == "shop"
    log.switch("shop2", by="me")
    assert log.end(by="me").other == ""
    # The next change begins at the application that answers now.
    with pytest.raises(MoveRefused, match="shop2 answers callers, not shop"):
        log.begin("shop", "shop3", by="me")
    assert log.begin("shop2", "shop3", by="me").other == "shop3"


def test_a_switch_that_changes_nothing_writes_no_record(store: Store) -> None:
    log = SwitchLog(store, "shop")
    log.begin("shop", "shop2", by="me")
    assert log.begin("shop", "shop2", by="me").seq == log.switch("shop", by="me").seq == 1


def test_switches_to_other_applications_are_refused_in_words(store: Store) -> None:
    log = SwitchLog(store, "shop")
    with pytest.raises(MoveRefused, match="there is shop alone"):
        log.switch("shop2", by="me")
    with pytest.raises(MoveRefused, match="shop is the only application"):
        log.end(by="me")
    log.begin("shop", "shop2", by="me")
    with pytest.raises(MoveRefused, match="there is shop and shop2"):
        log.switch("shop9", by="me")
    with pytest.raises(MoveRefused, match="shop2 stands ready beside shop already"):
        log.begin("shop", "shop3", by="me")


def test_of_many_who_switch_at_once_each_record_has_one_writer(store: Store) -> None:
    SwitchLog(store, "shop").begin("shop", "shop2", by="me")

    def switch(number: int) -> None:
        for turn in range(5):
            SwitchLog(store, "shop").switch(("shop", "shop2")[(number + turn) % 2], by=f"{number}")

    threads = [threading.Thread(target=switch, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    newest = SwitchLog(store, "shop").newest()
    assert {newest.current, newest.other} == {"shop", "shop2"}


def test_a_damaged_newest_record_is_said_and_no_older_one_counts(store: Store) -> None:
    log = SwitchLog(store, "shop")
    log.begin("shop", "shop2", by="me")
    store.create("shop/switches/000000000002.json", b'{"current":"shop2"')
    with pytest.raises(VersionDefect, match=r"switches/000000000002\.json"):
        log.newest()
