"""Commands in the texts of errors can be copied: each is run as it is printed, with the options that were given."""

from __future__ import annotations

import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

from streamlearn.hints import Given, completed
from streamlearn.versions import Node, PointerLog
from streamlearn.versions.pointer.moves import rollback
from tests.cli.place import APP, Ended, Place, Verb, commands_in
from tests.versions.history import MODEL


@pytest.fixture(params=["folder", "--app", "name and store", "settings"])
def words(request: pytest.FixtureRequest, place: Place, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words after a verb that name the model, each time in another way; nothing is in the environment."""
    for name in ("STREAMLEARN_STORE", "STREAMLEARN_REGISTRY"):
        monkeypatch.delenv(name)
    folder = place.folder / "my shop"
    folder.mkdir()
    (folder / "app.py").write_text(APP.format(name=MODEL))
    store, registry = f"file://{place.folder}/store", f"sqlite://{place.folder}/registry.db"
    if request.param == "name and store":
        return [MODEL, "--store", store, "--registry", registry]
    if request.param == "settings":
        return [str(folder), "--set", f"versions.store={store}", "--set", f"registry.url={registry}"]
    (folder / "app.toml").write_text(f'[versions]\nstore = "{store}"\n[registry]\nurl = "{registry}"\n')
    return ["--app", str(folder)] if request.param == "--app" else [str(folder)]


def after(words: list[str], *versions: int) -> list[str]:
    """The words that name a model, with versions where they belong."""
    named = 0 if words[0].startswith("-") else 1
    return [*words[:named], *map(str, versions), *words[named:]]


def roll_back(place: Place, to: int) -> None:
    PointerLog(place.store, MODEL).move(partial(rollback, known=place.known, to=to), by="test")


def check_all(ended: Ended, verb: Verb, count: int, *, status: int = 0) -> None:
    commands = commands_in(ended.err)
    assert len(commands) == count, ended.err
    for command in commands:
        done = verb(*command)
        assert done.status == status, (command, done)


def test_a_version_that_is_not_there_leads_to_the_list(words: list[str], verb: Verb) -> None:
    check_all(verb("show", *after(words, 99)), verb, 1)
    check_all(verb("rollback", *words, "--steps", 99), verb, 1)


def test_an_older_version_leads_to_a_rollback(place: Place, words: list[str], verb: Verb) -> None:
    ended = verb("promote", *after(words, 2), "--wait", 0)
    (command,) = commands_in(ended.err)
    assert verb(*command, "--wait", 0).status == 0
    assert (place.pointer.active_version, place.pointer.held) == (2, True)


def test_a_tainted_version_leads_to_its_acceptance(place: Place, words: list[str], verb: Verb) -> None:
    roll_back(place, 2)
    for verb_words in (["promote", *after(words, 5), "--wait", "0"], ["rewind", *words, "--to", "5"]):
        command, *_ = commands_in(verb(*verb_words).err)
        assert verb(*command, "--wait", 0).status == 0
        assert place.pointer.active_version == 5
        roll_back(place, 2)


def test_a_release_that_finds_nothing_clean_leads_back_and_forth(place: Place, words: list[str], verb: Verb) -> None:
    roll_back(place, 2)
    versions, rewind, promote = commands_in(verb("release", *words, "--wait", 0).err)
    assert verb(*versions).status == 0
    assert verb(*rewind).status == 0
    assert "training was asked to go back to version 2" in verb("versions", *words).out
    assert verb(*promote, "--wait", 0).status == 0
    assert place.pointer.active_version == 5


def test_a_silent_node_leads_to_the_list(place: Place, words: list[str], verb: Verb) -> None:
    place.registry.beat(Node(name="node-1", boot_id="1", state="ready", active=5, seq=place.pointer.seq))
    ended = verb("rollback", *words, "--to", 4, "--wait", 0.2)
    assert ended.status == 3
    check_all(ended, verb, 1)


def test_a_damaged_move_leads_to_its_repair(place: Place, words: list[str], verb: Verb) -> None:
    move = place.folder / "store" / MODEL / "pointer" / "000000000004.json"
    move.write_bytes(move.read_bytes()[:-9])
    check_all(verb("rollback", *words, "--to", 2), verb, 1)
    assert verb("versions", *words).status == 0


@pytest.fixture
def verb(ended: Verb) -> Verb:
    return ended


@pytest.mark.parametrize("first", ["ingest", "train", "up"])
def test_what_lacks_its_topics_leads_to_the_verb_that_makes_them(
    first: str, small: Path, tmp_path: Path, ended: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(small, tmp_path / "my shop")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    words = [str(folder), "--set", f"topics.root=file://{tmp_path}/my topics"]
    made = next(command for command in commands_in(ended(first, *words).err) if "--create" in command)
    assert ended(*made).status == 0
    assert list((tmp_path / "my topics").iterdir())


def test_a_password_is_not_shown(place: Place, ended: Verb) -> None:
    said = ended("rollback", MODEL, "--to", 4, "--wait", 0.1, "--registry", "redis://ada:hu@sh@127.0.0.1:1/0")
    assert "--registry 'redis://***@127.0.0.1:1/0'" in said.err
    assert "hu@" not in said.err + said.out


def test_a_model_beside_its_application_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed("`streamlearn versions`", Given(app="shop", model="other")) == (
        "`streamlearn versions other --app shop`"
    )
    monkeypatch.setenv("STREAMLEARN_STORE", "/versions")
    assert completed("`streamlearn versions`", Given(app="shop")) == "`streamlearn versions --app shop`"


def test_a_command_that_needs_more_is_left_alone() -> None:
    for text in ("see `streamlearn topics --help`", "`rewind` puts training back", "docs/operating/rollback.md"):
        assert completed(text, Given(app="shop", changes=("--set", "a.b=1"))) == text
