"""Pinned memory: the right pages are given to the CUDA runtime, and a lane goes on without it."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from streamlearn.native import native
from streamlearn.serving.graphs.tensors import address_of
from streamlearn.serving.lanes import pinned_memory
from streamlearn.serving.lanes.lane_scoring import pin_slabs
from streamlearn.serving.lanes.pinned_memory import pin, unpin

_BYTES = 3 * 4096
# The functions of the runtime that are called; they write their arguments to a file, and fail if it does not exist.
_SOURCE = r"""
#include <stdio.h>
static int told(const char *name, void *at, size_t bytes, unsigned flags) {
    FILE *file = fopen(PLACE, "r+");
    if (!file) return 2;
    fseek(file, 0, SEEK_END);
    fprintf(file, "%s %zu %zu %u\n", name, (size_t)at, bytes, flags);
    fclose(file);
    return 0;
}
int cudaHostRegister(void *at, size_t bytes, unsigned flags) { return told("register", at, bytes, flags); }
int cudaHostUnregister(void *at) { return told("unregister", at, 0, 0); }
int cudaGetLastError(void) { return 0; }
const char *cudaGetErrorString(int status) { return status == 2 ? "out of memory" : "unknown"; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runtime")
    (folder / "runtime.c").write_text(f'#define PLACE "{folder / "told"}"\n{_SOURCE}')
    command = ["cc", "-shared", "-fPIC", "-o", str(folder / "runtime.so"), str(folder / "runtime.c")]
    subprocess.run(command, check=True, timeout=600)
    return folder / "runtime.so"


@pytest.fixture
def told(library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the runtime was told."""
    monkeypatch.setattr(pinned_memory, "_NAMES", (str(library),))
    file = library.parent / "told"
    file.write_text("")
    return file


@pytest.fixture
def slabs() -> tuple[Any, int]:
    file = os.memfd_create("slabs")
    os.ftruncate(file, _BYTES)
    return native.SharedSlabs(file), file


def test_a_lane_pins_exactly_its_slabs_which_it_only_reads(
    told: Path, slabs: tuple[Any, int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "streamlearn.serving.LaneScoring"):
        pin_slabs(*slabs)
    address = address_of(slabs[0].tensor(0, (1,), False))
    assert told.read_text() == f"register {address} {_BYTES} 9\n"
    assert address_of(slabs[0].tensor(4096, (1,), False)) == address + 4096
    assert caplog.messages == [f"pinned {_BYTES} bytes of slabs"]


def test_memory_that_may_be_written_to_is_pinned_and_unpinned(told: Path) -> None:
    assert [pin(1 << 40, 77), unpin(1 << 40)] == ["", ""]
    assert told.read_text() == f"register {1 << 40} 77 1\nunregister {1 << 40} 0 0\n"


def test_a_lane_goes_on_if_the_runtime_refuses_or_is_missing(
    told: Path,
    slabs: tuple[Any, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told.unlink()
    pin_slabs(*slabs)
    monkeypatch.setattr(pinned_memory, "_NAMES", ("libcudart.so.none",))
    monkeypatch.setattr(pinned_memory, "_MAPS", Path(os.devnull))
    pin_slabs(*slabs)
    assert unpin(1 << 40) == ""
    refused, missing = caplog.messages
    assert refused.endswith("CUDA error 2: out of memory")
    assert missing.endswith("none of libcudart.so.none is loaded or installed")
