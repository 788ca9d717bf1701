"""Tables and text on a terminal: what came from outside is shown as it is, and does nothing."""

from __future__ import annotations

import sys

import pytest
from msgspec import structs

from streamlearn.cli.output.table import print_facts, print_table
from streamlearn.errors import StreamlearnError
from streamlearn.printable import printable
from streamlearn.versions import Node, Pointer, Request, Requests
from streamlearn.versions.store.layout import model_folder
from streamlearn.versions.store.sequence import Sequence
from tests.cli.place import Place, Verb
from tests.versions.history import MODEL

MARKUP = ["(1) INTERNAL [/device:CPU:0]", "[n, k]", "plain [bold]x[/bold]", "[link=http://x]ok[/link]", "see :warning:"]
CONTROL, SHOWN = "a\x1b]0;owned\x07\x1b[2J\x9bb", r"a\x1b]0;owned\x07\x1b[2J\x9bb"


@pytest.mark.parametrize("text", MARKUP)
def test_markup_in_a_cell_or_title_is_text(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"reason": text, "n": 3}], f"title {text}", whole=True)
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith(f"{text}  ")
    # A title is wrapped at the width of its table.
    assert " ".join(said.split()).startswith(f"title {text} reason")
    print_facts("trained", {text: 1})
    assert text in capsys.readouterr().out


def test_control_characters_in_a_table_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"said": CONTROL}], CONTROL, whole=True)
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert said.count(SHOWN) == 2


def test_text_for_a_terminal_keeps_its_letters_and_cannot_fake_a_line() -> None:
    assert printable("blå\t[x]") == "blå\t[x]"
    assert printable(CONTROL) == SHOWN
    assert printable("a\nb\rc") == "a\n  b\\x0dc"
    assert printable("cod\u202eexe\u2028error: fake") == "cod\\u202eexe\\u2028error: fake"


def test_what_nodes_and_people_said_of_a_version_cannot_move_the_cursor(place: Place, ended: Verb) -> None:
    said = f"[/device:CPU:0] {CONTROL}"
    place.registry.beat(Node(boot_id="b1", name="node-7", state="stale", said=said))
    # Another program may have written the newest move as it liked.
    moves = Sequence(place.store, model_folder(MODEL, "pointer"), Pointer)
    moves.append(place.pointer.seq + 1, structs.replace(place.pointer, seq=place.pointer.seq + 1, by=said, reason=said))
    requests, ref = Requests(place.store, MODEL), place.known[0].ref
    requests.ask(Request(to=ref, by=said))
    requests.refuse(requests.ask(Request(to=ref, by=said)), said)
    shown = ended("versions", MODEL)
    assert shown.status == 0, shown
    assert "\x1b" not in shown.out
    assert shown.out.count(f"[/device:CPU:0] {SHOWN}") == 6


@pytest.mark.parametrize(
    "error",
    [StreamlearnError(f"it said {CONTROL}", help=f"see {CONTROL}"), OSError(5, f"it said {CONTROL}", f"see {CONTROL}")],
)
def test_an_error_cannot_move_the_cursor(error: Exception, ended: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(sys.modules["streamlearn.cli.main"], "_built", lambda: fail)
    result = ended()
    assert result.status == 1
    assert "\x1b" not in result.err
    assert f"it said {SHOWN}" in result.err
    assert f"see {SHOWN}" in result.err
    assert [line.partition(":")[0] for line in result.err.splitlines()] == ["error", "help"]
