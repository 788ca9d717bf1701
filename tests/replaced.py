"""An application in a folder, and changed ones beside it that share its events, store and registry."""

from __future__ import annotations

import threading
from pathlib import Path

from streamlearn.apps import AppFolder, load_app
from streamlearn.trainer.intake.feed import Until
from streamlearn.trainer.trainer_setup import train
from tests.trainer.stream import messages_of, write_messages

__all__ = ["ADDED", "folder_of", "learn", "learned_folder"]

APP = """
from dataclasses import replace

from streamlearn.features import Slot
from tests.trainer.stream import learnable_app

app = replace(learnable_app({name!r}), serves="learnable", model="logistic")
slots = (*app.features.slots, *{slots})
app = replace(app, features=replace(app.features, slots=slots))
"""
ADDED = '(Slot("mood", "item", table="mood", dim=8, default=0),)'
TOML = """
[topics]
root = "file://{root}/topics"
{more}

[versions]
store = "file://{root}/store"

[registry]
url = "sqlite://{root}/registry.db"

[tables]
rows_max = 20000

[serving]
users_buckets = [1]
candidates_buckets = [4]
cache_folder = "{root}/compiled"

[front]
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
deadline_ms = 30000
"""


def folder_of(root: Path, name: str, slots: str = "()", more: str = "") -> Path:
    folder = root / name
    folder.mkdir(exist_ok=True)
    (folder / "app.py").write_text(APP.format(name=name, slots=slots))
    (folder / "app.toml").write_text(TOML.format(root=root, more=more))
    return folder


def learn(folder: AppFolder) -> None:
    """Learn all samples that there are, and promote the newest version."""
    train(folder, threading.Event(), until=lambda topic: Until(None, 0.1))


def learned_folder(root: Path) -> Path:
    """The folder of an application with a version that is served."""
    folder = load_app(folder_of(root, "learnable"))
    write_messages(folder, messages_of(folder.app, 4))
    learn(folder)
    return folder.folder
