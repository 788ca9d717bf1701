"""Sides: an application and the one that replaces it, which answer the same callers while both run."""

from __future__ import annotations

from streamlearn.apps.folder import AppFolder
from streamlearn.errors import UsageError

__all__ = ["check_sides"]


def check_sides(old: AppFolder, new: AppFolder) -> None:
    """Raise `UsageError` unless two applications answer the same callers from the same places; it names all of them."""
    if new.app.name == old.app.name:
        message = f"both applications have the name {new.app.name!r}"
        help = f'give the changed one a name of its own, and serves="{old.app.served_name}" to keep the served name'
        raise UsageError(message, help=help)
    sides = {
        "serves": (old.app.served_name, new.app.served_name),
        "versions.store": (old.store_url, new.store_url),
        "registry.url": (old.registry_url, new.registry_url),
        "topics.impressions": (old.topic_url("impressions"), new.topic_url("impressions")),
        "topics.actions": (old.topic_url("actions"), new.topic_url("actions")),
    }
    wrong = {name: values for name, values in sides.items() if values[0] != values[1]}
    if wrong:
        name, (before, now) = next(iter(wrong.items()))
        lines = "; ".join(_setting_line(name, before) for name, (before, _) in wrong.items())
        message = f"{name} of {new.app.name!r} is {now!r}; {old.app.name!r} has {before!r}"
        help = f"set what both applications share in the new one's app.py (serves) and app.toml: {lines}"
        raise UsageError(message, help=help)


def _setting_line(name: str, value: str) -> str:
    section, _, key = name.rpartition(".")
    return f'{key} = "{value}" below [{section}]' if section else f'{key} = "{value}"'
