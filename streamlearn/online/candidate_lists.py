"""Where the lists of candidates of an application are: in the store of feature states, as a group of their own."""

from __future__ import annotations

from dataclasses import replace

from streamlearn.apps import AppFolder
from streamlearn.errors import UsageError
from streamlearn.online.state_store import StateGroup

__all__ = ["list_group", "list_groups"]

# Of each kind of list: the scores of one kind mean nothing in the other.
_SIDES = {"found": "list", "ranked": "ranked_list"}


def list_group(folder: AppFolder, partitions: int = 0) -> StateGroup:
    """Return the group of the lists of the kind that is set; the key of a list is that of its user.

    Raises:
        UsageError: The application has no use for lists; the message says what it lacks.
    """
    app, user = folder.app, folder.app.features.user_slot
    if app.retrieval is None:
        message = f"application {app.name!r} has no retrieval"
        raise UsageError(message, help="declare App(retrieval=...) in its app.py")
    if folder.settings.retrieval.nearline == "off":
        message = "retrieval.nearline is off, so nodes would not use lists"
        raise UsageError(message, help='set it for all processes, in app.toml: [retrieval] nearline = "found"')
    if not app.features.entities:
        message = f"application {app.name!r} has no interactions, because it has no computed columns"
        raise UsageError(message, help="declare one, such as the last clicks of a user: computed=Last(...)")
    if user not in app.retrieval.user:
        message = f"the user tower of application {app.name!r} reads no slot that names users"
        raise UsageError(message, help=f"add {user!r} to Retrieval(user=...): a list is found by it" if user else
                         "name it: FeatureSpec(user_id=...)")  # fmt: skip
    side = _SIDES[folder.settings.retrieval.nearline]
    return StateGroup(app.name, side, int(app.retrieval_fingerprint, 16), partitions)


def list_groups(folder: AppFolder) -> list[StateGroup]:
    """Return the groups of lists of all kinds: those of the other kind stay a while when the setting changes.

    Raises:
        UsageError: As `list_group`.
    """
    group = list_group(folder)
    return [replace(group, side=side) for side in _SIDES.values()]
