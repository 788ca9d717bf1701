"""`streamlearn new`: a folder with an application that works, to begin one's own with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamlearn.errors import UsageError

__all__ = ["FILES", "new"]

_APP = '''"""The application @APP@: what requests and items look like, and what people do that models predict."""

from streamlearn.apps import App
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Slot

features = FeatureSpec(
    slots=(
        Slot("user_id", "user"),
        Slot("country", "user", value="str"),
        Slot("item_id", "item"),
        Slot("category", "item"),
    ),
    dense=(Dense("price", "item"),),
    item_id="item_id",
)

app = App(
    name="@APP@",
    features=features,
    # A row is learned a minute after its impression, and corrected by an action up to ten minutes after it.
    groups=(LabelGroup("fast", wait_s=60, window_s=600),),
    labels=(Label("click", "click", "fast"),),
)
'''
_SETTINGS = """# Settings of @APP@. `streamlearn settings .` lists all of them.

[topics]
# The invented history has times of its own, and `replay` ends its topics. For events that come when they happen, begin
# in another folder, without this line.
time = "event"
"""
_HISTORY = '''"""An invented history, for the verb replay. Read a log of your own here instead.

Some categories are clicked more often than others, and people have a favourite one.
"""

import numpy as np

from streamlearn.events import text_columns
from streamlearn.replay import ColumnHistory

REQUESTS, ITEMS_SHOWN, BEGIN_MS, SPACING_MS = 5_000, 4, 1_750_000_000_000, 5_000
COUNTRIES = np.array(["BR", "DE", "IN"])


def history(options):
    """Return the history; `--option NAME=VALUE` comes in `options`."""
    rng = np.random.default_rng(1)
    user = rng.integers(0, 200, REQUESTS)
    item = np.stack([rng.choice(100, ITEMS_SHOWN, replace=False) for _ in range(REQUESTS)])
    category = item % 8
    chance = 0.02 + 0.05 * category + 0.2 * (category == (user % 8)[:, None])
    is_clicked = rng.random(item.shape) < chance
    time_ms = BEGIN_MS + SPACING_MS * np.arange(REQUESTS)
    ids = np.array([f"request-{number}" for number in range(REQUESTS)])
    impressions = {
        **text_columns("request_id", ids.tolist()),
        "event_time_ms": time_ms,
        "user.user_id": user,
        **text_columns("user.country", COUNTRIES[user % len(COUNTRIES)].tolist()),
        "items[]": np.arange(REQUESTS + 1, dtype=np.int32) * ITEMS_SHOWN,
        "items.item_id": item.reshape(-1),
        "items.category": category.reshape(-1),
        "items.price": rng.gamma(2.0, 10.0, item.size).astype(np.float32),
    }
    request, place = np.nonzero(is_clicked)
    actions = {
        **text_columns("request_id", ids[request].tolist()),
        "event_time_ms": time_ms[request] + 8_000,
        "item_id": item[request, place],
        **text_columns("action", ["click"] * len(request)),
    }
    return ColumnHistory(impressions, actions)
'''
FILES = {"app.py": _APP, "app.toml": _SETTINGS, "history.py": _HISTORY}
"""The files of a new application. @APP@ stands for its name."""

_NEXT = (
    ("write its invented history into topics", "replay {folder} --speed 0"),
    ("create the topics that are missing", "topics {folder} --create 4"),
    ("make samples", "ingest {folder} --runner prism"),
    ("learn them, and write a version", "train {folder} --until-offset end"),
    ("answer requests", "serve {folder}"),
)
_REQUEST = '{"user": {"user_id": 7, "country": "DE"}, "items": [{"item_id": 3, "category": 3, "price": 20.0}]}'


def new(
    folder: Annotated[
        Path, typer.Argument(help="The folder to make. Its name is that of the application: letters, digits and `_`.")
    ],
) -> None:
    """Make a folder with an application that works: its declaration, its settings and an invented history."""
    from streamlearn.features.names import check_name

    check_name("application", folder.name)
    if folder.exists():
        message = f"{folder} exists already"
        raise UsageError(message, help="name a folder that does not, or remove it")
    folder.mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).write_text(text.replace("@APP@", folder.name))
    typer.echo(f"{folder} has {', '.join(FILES)}. To see it work:\n")
    width = max(len(words) for _, words in _NEXT) + len(str(folder))
    for what, words in _NEXT:
        typer.echo(f"  streamlearn {words.format(folder=folder):{width}}  # {what}")
    typer.echo("\nand in another terminal, once it says that it is served:\n")
    typer.echo(f"  curl -s 127.0.0.1:8000/score -H 'content-type: application/json' -d '{_REQUEST}'")
