"""Licences of the crates that are linked into the native module: each is allowed, and each is in the notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.release import licences
from tools.release.licences import ALLOWED, NOTICE, TARGETS, Crate, chosen_licences, linked_crates, notice


@pytest.fixture(scope="module")
def crates() -> list[Crate]:
    return sorted({crate for target in TARGETS for crate in linked_crates(target)})


def test_what_is_linked_is_listed_and_what_only_builds_or_tests_is_not(crates: list[Crate]) -> None:
    names = {crate.name for crate in crates}
    assert {"pyo3", "tokio", "ring", "tonic", "libc"} <= names
    assert not {"proptest", "loom", "syn", "serde_derive", "cc", "streamlearn-wire"} & names


def test_each_linked_crate_has_an_allowed_licence(crates: list[Crate]) -> None:
    refused = {crate.name: crate.licence for crate in crates if not chosen_licences(crate.licence)}
    assert not refused, f"linked crates may have {', '.join(ALLOWED)}"


def test_the_notice_in_the_source_is_that_of_the_lock_file(crates: list[Crate]) -> None:
    text = NOTICE.read_text()
    assert text == notice(), "run python -m tools.release.licences"
    lines = text.splitlines()
    for crate in crates:
        assert f"{crate.name} {crate.version}: {' and '.join(chosen_licences(crate.licence))}" in lines


@pytest.mark.parametrize(
    ("licence", "chosen"),
    [
        ("MIT/Apache-2.0", ("Apache-2.0",)),
        ("Unlicense OR MIT", ("MIT",)),
        ("MIT AND BSD-3-Clause", ("MIT", "BSD-3-Clause")),
        ("GPL-3.0-only", ()),
        ("MIT AND GPL-3.0-only", ()),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", ()),
        ("", ()),
    ],
)
def test_the_first_allowed_licence_is_chosen_and_what_is_not_understood_is_refused(
    licence: str, chosen: tuple[str, ...]
) -> None:
    assert chosen_licences(licence) == chosen


def test_the_notice_has_the_texts_that_a_licence_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for name, licence, files in (
        ("shared", "MIT", {"LICENSE-MIT": "Copyright A\n"}),
        ("twin", "MIT", {"LICENSE": "Copyright  A \n", "README": "not this\n"}),
        ("both", "MIT OR Apache-2.0", {"LICENSE-MIT": "Copyright B\n", "NOTICE": "Made by B\n"}),
        ("bad", "GPL-3.0-only", {"COPYING": "Copyleft\n"}),
    ):
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
        made.append(Crate(name, "1.0", licence, tmp_path / name))
    monkeypatch.setattr(licences, "linked_crates", lambda target: made)
    text = notice()
    assert "shared 1.0, twin 1.0\n\nCopyright A\n" in text
    assert text.count("Copyright") == 1
    assert "Made by B" in text
    assert "bad 1.0: GPL-3.0-only, which is not allowed" in text
    assert "not this" not in text
