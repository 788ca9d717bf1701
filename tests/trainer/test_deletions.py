"""Deletions: a person's rows leave the model with the next version; no rewind and no older sample brings them back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import VersionDefect
from streamlearn.versions import Chain, Request, Requests
from streamlearn.versions.pointer.deletion import Deletion, Deletions
from streamlearn.versions.pointer.run_origin import read_origin
from tests.trainer.runs import run, state_of, store_of
from tests.trainer.stream import T_MS, learnable_folder, messages_of, write_messages


def folder_of(path: Path) -> AppFolder:
    return learnable_folder(path, {"trainer": {"step_rows": 64}, "publisher": {"publish_interval_s": 3_600}})


def keys_of(folder: AppFolder, version: int | None = None) -> set[int]:
    return set(np.frombuffer(state_of(folder, version)["main.keys"], np.uint64).tolist())


def ask(folder: AppFolder, keys: set[int], until_ms: int) -> Deletion:
    texts = tuple(f"{key:016x}" for key in sorted(keys))
    deletions = Deletions(store_of(folder), folder.app.name, clock=SYSTEM_CLOCK)
    return deletions.ask(Deletion(keys={"main": texts, "gone": texts}, until_ms=until_ms, by="privacy"))


def obeyed(folder: AppFolder) -> Any:
    return Chain.find(store_of(folder), folder.app.name).manifest.metrics.get("deletions_obeyed")


def users_of(messages: Any) -> set[int]:
    return {int(key) for _, batch in messages for key in batch.user.slots["user_id"].keys}


def test_the_next_version_is_without_the_rows_also_if_nothing_is_learned(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    messages = messages_of(folder.app, 4)
    write_messages(folder, messages)
    version = run(folder).version
    keys = set(sorted(keys_of(folder) & users_of(messages))[:3])
    assert len(keys) == 3
    assert ask(folder, keys, 0).seq == 1
    report = run(folder)
    assert (report.tally.rows, report.version, obeyed(folder)) == (0, version + 1, 1)
    assert keys_of(folder, version) - keys_of(folder) == keys
    origin = read_origin(store_of(folder), folder.app.name, report.run)
    assert origin is not None
    assert origin.settings["trainer.step_rows"] == 64
    # Once is enough: nothing is left to do.
    assert run(folder).version == report.version
    assert ask(folder, keys, 0).seq == 2


def test_a_rewind_to_an_older_version_does_not_bring_the_rows_back(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    messages = messages_of(folder.app, 4)
    write_messages(folder, messages[:2])
    run(folder)
    store, name = store_of(folder), folder.app.name
    old = Chain.find(store, name)
    write_messages(folder, messages[2:])
    run(folder)
    keys = set(sorted(keys_of(folder, old.version) & users_of(messages))[:3])
    ask(folder, keys, 0)
    run(folder)
    whole = keys_of(folder, old.version)
    Requests(store, name, clock=SYSTEM_CLOCK).ask(Request(to=old.ref))
    reverted: list[int] = []
    # The revert itself is without them, not only the version after it.
    report = run(folder, on_step=lambda step: reverted.append(Chain.find(store, name).version))
    assert report.rewinds == 1
    assert Chain.find(store, name, reverted[0]).manifest.content_of == old.ref
    assert keys_of(folder, reverted[0]) == whole - keys
    assert obeyed(folder) == 1


def test_samples_of_before_do_not_bring_the_rows_back_and_later_ones_do(tmp_path: Path) -> None:
    for name, until_ms in (("before", T_MS + (1 << 40)), ("after", T_MS - 1)):
        folder = folder_of(tmp_path / name)
        messages = messages_of(folder.app, 4)
        write_messages(folder, messages)
        ask(folder, users_of(messages), until_ms)
        assert run(folder).tally.rows > 0
        assert obeyed(folder) == 1
        assert bool(users_of(messages) & keys_of(folder)) == (name == "after")


def test_a_damaged_deletion_is_named_and_is_not_passed_over(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    write_messages(folder, messages_of(folder.app, 2))
    run(folder)
    ask(folder, {1}, 0)
    (file,) = (tmp_path / "store" / folder.app.name / "deletions").glob("*.json")
    file.write_bytes(file.read_bytes().replace(b"privacy", b"privaty"))
    with pytest.raises(VersionDefect, match=r"deletions/0*1\.json"):
        run(folder)
