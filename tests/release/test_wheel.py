"""What is in the wheel and in the source: a true tag, a stripped module, licences, and a bill of materials."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.release.build import PLATFORM, release_version
from tools.release.licences import NOTICE, ROOT, linked_crates

_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)")


@pytest.fixture(scope="module")
def files(wheel: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(wheel) as opened:
        yield opened


@pytest.fixture(scope="module")
def module(files: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(files.extract("streamlearn/_native.abi3.so", tmp_path_factory.mktemp("module")))


def test_its_name_has_the_version_the_stable_abi_and_the_c_library(wheel: Path) -> None:
    assert wheel.name == f"streamlearn-{release_version()}-cp311-abi3-{PLATFORM}_{platform.machine()}.whl"


def test_the_module_asks_for_no_newer_c_library_than_its_name_says(module: Path) -> None:
    shown = subprocess.run(["readelf", "--wide", "--dyn-syms", module], capture_output=True, text=True, check=True)
    asked = {(int(major), int(minor)) for major, minor in _GLIBC.findall(shown.stdout)}
    assert (2, 2) < max(asked) <= (2, 28), asked


def test_the_module_is_stripped_and_needs_the_c_library_alone(module: Path) -> None:
    shown = subprocess.run(
        ["readelf", "--wide", "--sections", "--dynamic", module], capture_output=True, text=True, check=True
    ).stdout
    assert ".symtab" not in shown
    assert ".debug_" not in shown
    libraries = set(re.findall(r"\(NEEDED\).*\[(.*)\]", shown))
    assert libraries <= {
        "libc.so.6",
        "libm.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "ld-linux-x86-64.so.2",
        "librt.so.1",
    }
    assert module.stat().st_size < 16 << 20


def test_each_linked_crate_is_in_the_bill_of_materials(files: zipfile.ZipFile) -> None:
    (name,) = [name for name in files.namelist() if ".dist-info/sboms/" in name]
    bill = json.loads(files.read(name))
    assert bill["bomFormat"] == "CycloneDX"
    listed = {(part["name"], part["version"]): part for part in bill["components"]}
    for crate in linked_crates(f"{platform.machine()}-unknown-linux-gnu"):
        (licence,) = listed[crate.name, crate.version]["licenses"]
        assert licence == {"expression": crate.licence.replace("/", " OR ")}


def test_licences_come_with_it(files: zipfile.ZipFile) -> None:
    folder = f"streamlearn-{release_version()}.dist-info/licenses"
    for file in (ROOT / "LICENSE", NOTICE):
        assert files.read(f"{folder}/{file.relative_to(ROOT).as_posix()}") == file.read_bytes()


def test_it_has_the_package_and_nothing_of_the_source_beside_it(files: zipfile.ZipFile) -> None:
    top = {name.partition("/")[0] for name in files.namelist()}
    assert top == {"streamlearn", f"streamlearn-{release_version()}.dist-info"}
    tracked = subprocess.run(
        ["git", "ls-files", "streamlearn"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    assert set(tracked) <= set(files.namelist())


def test_the_source_has_all_that_a_build_reads(tmp_path: Path) -> None:
    maturin = Path(sys.executable).with_name("maturin")
    subprocess.run([maturin, "sdist", "--out", tmp_path], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    tracked = subprocess.run(
        ["git", "ls-files", "streamlearn", "native"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    needed = {name for name in tracked if not name.startswith("native/fuzz/") and "/tests/" not in name}
    others = {"Cargo.toml", "Cargo.lock", "pyproject.toml", "LICENSE", "README.md", ".cargo/config.toml"}
    assert not (needed | others) - names
