"""What `show` knows of a version beside its files: notes of people, and the code and settings of its run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from streamlearn.apps.revision import revision_of
from streamlearn.config import changed_settings
from streamlearn.errors import UsageError
from streamlearn.settings import Settings
from streamlearn.struct_decoder import from_plain
from streamlearn.versions.format.version_note import NOTES_MAX, VersionNote, add_note, read_notes
from streamlearn.versions.pointer.run_origin import RunOrigin, read_origin, write_origin
from tests.cli.place import Place, Verb, refused
from tests.versions.history import MODEL


def test_notes_on_a_version_are_shown_in_their_order_and_escaped(place: Place, ended: Verb) -> None:
    assert ended("note", MODEL, 4, "before the sale").out == "note 1 on version 4 of ctr\n"
    done = ended("note", MODEL, 4, "--json", "odd clicks \x1b[2J [bold]")
    assert (done.json["number"], done.json["version"]) == (2, 4)
    said = ended("show", MODEL, 4).out
    assert said.index("before the sale") < said.index("odd clicks")
    assert "\x1b" not in said
    assert "[bold]" in said
    assert ended("show", MODEL, 4, "--json").json["notes"][0]["text"] == "before the sale"
    rows = {row["version"]: row["notes"] for row in ended("versions", MODEL, "--json").json["versions"]}
    assert [len(rows[version]) for version in (2, 4, 5)] == [0, 2, 0]
    refused(ended("note", MODEL, 3, "none"), 2, "version 3 of 'ctr' does not exist")
    refused(ended("note", MODEL, 4, ""), 2, "a note has 1 to 2,000 characters; this one has 0")
    assert ended("verify", MODEL).status == 0


def test_a_version_has_a_bounded_number_of_notes_that_go_with_it(place: Place, ended: Verb) -> None:
    folder = place.trainer.last.folder if place.trainer.last else ""
    for _ in range(NOTES_MAX):
        add_note(place.store, folder, VersionNote(text="again"))
    with pytest.raises(UsageError, match="100 notes, the most"):
        add_note(place.store, folder, VersionNote(text="one more"))
    assert len(read_notes(place.store, folder)) == NOTES_MAX
    ended("note", MODEL, 1, "the first")
    options = ("--set", "retention.keep_versions_min=1", "--set", "retention.keep_s=0", "--registry", "none")
    ended("compact", MODEL, "--version", 4)
    assert ended("gc", MODEL, "--yes", "--grace-s", 0, *options).status == 0
    assert [entry.version for entry in place.known] == [4, 5]
    assert {file.path.split("/")[2][:12] for file in place.store.walk(MODEL) if "/notes/" in file.path} == {f"{5:012d}"}


def test_show_tells_the_code_and_the_settings_of_the_run_that_made_a_version(place: Place, ended: Verb) -> None:
    assert ended("show", MODEL, 5, "--json").json["run_origin"] is None
    settings = {"publisher": {"publish_interval_s": 5}, "registry": {"url": "redis://me:secret@host:6379"}}
    changed = changed_settings(from_plain(settings, Settings))
    assert changed == {"publisher.publish_interval_s": 5.0, "registry.url": "redis://host:6379"}
    origin = RunOrigin(run=1, release="9.8", commit="abc", is_changed=True, sha256={"app.py": "12"}, settings=changed)
    write_origin(place.store, MODEL, origin)
    write_origin(place.store, MODEL, RunOrigin(run=1, release="other"))
    assert read_origin(place.store, MODEL, 1) == origin
    said = ended("show", MODEL, 5).out
    for text in ("9.8", "abc, with changes", "sha256 of app.py", "publisher.publish_interval_s", '"redis://host:6379"'):
        assert text in said
    assert ended("show", MODEL, 5, "--json").json["run_origin"]["commit"] == "abc"


def test_the_revision_of_a_folder_is_that_of_its_git_work_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr("streamlearn.apps.revision._GIT_WAIT_S", 120.0)
    (tmp_path / "app.py").write_text("app = 1\n")
    plain = revision_of(tmp_path)
    assert (plain.commit, plain.is_changed, list(plain.sha256)) == ("", None, ["app.py"])
    names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for words in (["init", "-q"], ["add", "app.py"], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, env=os.environ | names)
    clean = revision_of(tmp_path)
    assert (len(clean.commit), clean.is_changed, clean.sha256) == (40, False, plain.sha256)
    (tmp_path / "app.py").write_text("app = 2\n")
    assert revision_of(tmp_path).is_changed is True
    monkeypatch.setenv("PATH", "")
    assert revision_of(tmp_path).commit == ""
