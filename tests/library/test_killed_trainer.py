"""A trainer that is killed at any time: the next one has the library of a run that was never killed."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

from streamlearn.apps import AppFolder
from streamlearn.testing import wait_until
from streamlearn.topics import create_topic
from streamlearn.versions import verify
from tests.library.history import known
from tests.library.trained import keep, kept, write_items
from tests.trainer.processes import job, said, store_files, write_app
from tests.trainer.runs import state_of, store_of
from tests.trainer.stream import messages_of, write_messages

KILLS, PIECE = 2, 16
DEADLINE_S = 300.0
SETTINGS: dict[str, dict[str, Any]] = {
    "trainer": {"order": "strict", "step_rows": 64, "rate": 0.01},
    "publisher": {"publish_interval_s": 0.02},
    "topics": {"time": "event"},
}
APP = """
import sys
from dataclasses import replace

sys.path.insert(0, {root!r})
from tests.library.place import kept_app

app = replace(kept_app(expire_s=40), model={model!r})
"""


def folder_of(path: Path) -> AppFolder:
    folder = write_app(path, SETTINGS, text=APP)
    create_topic(folder.topic_url("items"), folder.topic_settings("items", 2), folder.access).close()
    return folder


def test_a_trainer_killed_at_any_time_is_followed_by_one_with_the_same_library(tmp_path: Path) -> None:
    chance = random.Random(3)
    folder, whole = folder_of(tmp_path / "killed"), folder_of(tmp_path / "whole")
    messages = messages_of(folder.app, (KILLS + 1) * PIECE)
    share = len(messages) // (KILLS + 1)
    told = [(9_000 + item, 1 + item % 30, None if item % 5 == 0 else item) for item in range(60)]
    for number in range(KILLS):
        write_messages(folder, messages[number * share : (number + 1) * share])
        write_items(folder, told[number * 20 : (number + 1) * 20])
        files = store_files(folder) + chance.randrange(1, 40)
        with job(folder) as process:

            def has_come(files: int = files, process: Any = process) -> bool:
                assert process.poll() is None, said(folder)
                return store_files(folder) >= files

            wait_until(has_come, f"{files} files", DEADLINE_S)
            process.kill()
            assert process.wait() == -signal.SIGKILL
    write_messages(folder, messages[KILLS * share :])
    write_items(folder, told[KILLS * 20 :])
    write_messages(whole, messages)
    write_items(whole, told)
    for one in (folder, whole):
        keep(one)
    assert len(kept(whole)) > 100
    assert known(kept(folder)) == known(kept(whole))
    # Towers draw items of the topic, which come with the next cut.
    assert of_ranking_model(state_of(folder)) == of_ranking_model(state_of(whole))
    assert verify(store_of(folder), folder.app.name, everything=True).defects == ()


def of_ranking_model(state: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in state.items() if not name.startswith("towers.") and ".retrieval/" not in name}
