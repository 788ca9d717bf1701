"""The file that says which processes `up` gave up."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from msgspec import structs

from streamlearn.given_up import GivenUpFile, GivenUpProcess

INGEST = GivenUpProcess("ingest", "status 2", "/logs/ingest.log", 1_000, os.getpid())


def test_what_was_written_last_is_read(tmp_path: Path) -> None:
    file = GivenUpFile(tmp_path)
    assert file.read() == ()
    file.write([])
    file.write([INGEST])
    assert GivenUpFile(tmp_path).read() == (INGEST,)
    file.write([])
    assert file.read() == ()
    assert [*file.path.parent.iterdir()] == []


def test_what_an_up_wrote_that_is_gone_names_nobody(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    GivenUpFile(tmp_path).write([structs.replace(INGEST, up=gone.pid), INGEST])
    assert GivenUpFile(tmp_path).read() == (INGEST,)


def test_a_log_whose_path_is_no_text_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = GivenUpFile(tmp_path)
    file.write([structs.replace(INGEST, log="l\udcffog")])
    assert "the console cannot say who was given up" in caplog.text
    assert file.read() == ()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[", b"{}", b'[{"name": 1}]', b"[" * 100_000])
def test_a_file_that_cannot_be_read_names_nobody(tmp_path: Path, content: bytes) -> None:
    file = GivenUpFile(tmp_path)
    file.write([INGEST])
    file.path.write_bytes(content)
    assert file.read() == ()


def test_a_folder_that_cannot_be_written_is_logged_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".streamlearn").write_bytes(b"")
    GivenUpFile(tmp_path).write([INGEST])
    assert f"the console cannot say who was given up: {tmp_path}{os.sep}.streamlearn" in caplog.text
