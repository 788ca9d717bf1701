"""What a release refuses, and what it says that it could not build."""

from __future__ import annotations

import hashlib
import platform
import zipfile
from pathlib import Path

import pytest

from streamlearn.errors import ServiceError, UsageError
from tools.release import __main__ as command
from tools.release import build
from tools.release.build import build_release, build_wheel, check_changelog, release_version, this_wheel
from tools.release.licences import ROOT


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# Changelog\n\n## 0.9.0\n\n## 1.0.0\n", "is 0.9.0, not 1.0.0"),
        ("# Changelog\n\n## 1.0.0rc1\n", "is 1.0.0rc1, not 1.0.0"),
        ("# Changelog\n", "is missing, not 1.0.0"),
    ],
)
def test_a_changelog_whose_newest_version_is_another_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_changelog(text, "1.0.0")


def test_the_changelog_is_that_of_the_version() -> None:
    check_changelog((ROOT / "CHANGELOG.md").read_text(), release_version())
    check_changelog("# Changelog\n\n## 1.0.0 (unreleased)\n\n## 0.9.0\n", "1.0.0")


def test_a_processor_without_rusts_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="no standard library for riscv64gc-unknown-linux-gnu") as caught:
        build_wheel("riscv64gc-unknown-linux-gnu", out=tmp_path)
    assert caught.value.help == "rustup target add riscv64gc-unknown-linux-gnu"


def test_a_wheel_of_other_files_is_no_wheel_of_this_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "DIST", tmp_path)
    with pytest.raises(ServiceError, match="there is no wheel"):
        this_wheel()
    wheel = tmp_path / f"streamlearn-0.0.0-cp311-abi3-{build.PLATFORM}_{platform.machine()}.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for path in (ROOT / "streamlearn").rglob("*.py"):
            file.write(path, path.relative_to(ROOT))
    assert this_wheel() == wheel
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr("streamlearn/more.py", "")
    with pytest.raises(ServiceError, match="was built from other files"):
        this_wheel()


def test_a_release_has_its_sums_and_names_the_wheel_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wheel(target: str) -> Path:
        if target.startswith("aarch64"):
            message = "this Rust has no standard library"
            raise ServiceError(message)
        made = tmp_path / "streamlearn-1-x.whl"
        with zipfile.ZipFile(made, "w") as file:
            file.writestr("streamlearn-1.dist-info/sboms/a.cyclonedx.json", "{}")
        return made

    def maturin(source: Path, *words: str) -> None:
        (tmp_path / "streamlearn-1.tar.gz").write_text("source")

    (tmp_path / "of-before.whl").write_text("old")
    monkeypatch.setattr(build, "DIST", tmp_path)
    monkeypatch.setattr(command, "DIST", tmp_path)
    monkeypatch.setattr(build, "build_wheel", wheel)
    monkeypatch.setattr(build, "_maturin", maturin)
    assert command.main(["all"]) == 3
    assert (
        "not built: wheel for aarch64-unknown-linux-gnu: this Rust has no standard library" in capsys.readouterr().err
    )
    sums = dict(line.split()[::-1] for line in (tmp_path / "SHA256SUMS").read_text().splitlines())
    names = {"streamlearn-1-x.whl", "streamlearn-1-x.cyclonedx.json", "streamlearn-1.tar.gz"}
    assert sums == {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in names}


def test_nothing_is_built_under_a_wrong_heading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "kept.whl").write_text("of before")
    monkeypatch.setattr(build, "DIST", tmp_path / "dist")
    monkeypatch.setattr(build, "release_version", lambda: "99.0.0")
    with pytest.raises(UsageError, match=r"not 99\.0\.0"):
        build_release(print)
    assert (tmp_path / "dist" / "kept.whl").exists()


def test_other_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["everything"]) == 2
    assert "`python -m tools.release wheel`" in capsys.readouterr().err
