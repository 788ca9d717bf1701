"""The tree of errors: what the docstring draws is what there is, and an error says what to do."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from streamlearn import errors
from streamlearn.errors import StreamlearnError

KINDS = [getattr(errors, name) for name in errors.__all__ if not name.startswith("EXIT_")]


def drawn() -> dict[str, str]:
    """Each name the module's docstring draws, with the name it hangs under."""
    assert errors.__doc__ is not None
    lines = re.findall(r"^    ([│├└─ ]*)([A-Z]\w+)", errors.__doc__, re.MULTILINE)
    parents: dict[int, str] = {}
    found = {}
    for branch, name in lines:
        depth = len(branch) // 4
        found[name] = parents.get(depth - 1, "Exception")
        parents[depth] = name
    return found


def test_the_tree_is_as_its_docstring_draws_it() -> None:
    assert drawn() == {kind.__name__: kind.__base__.__name__ for kind in KINDS}


def test_every_public_name_is_listed() -> None:
    public = {name for name, value in vars(errors).items() if isinstance(value, type) and name[0] != "_"}
    assert public | {name for name in vars(errors) if name.startswith("EXIT_")} == set(errors.__all__)


def test_an_error_says_what_happened_and_then_what_to_do() -> None:
    error = StreamlearnError("the queue holds 8", help="drain it")
    assert str(error) == "the queue holds 8\nhelp: drain it"
    assert str(StreamlearnError("the queue holds 8")) == "the queue holds 8"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_crosses_processes_whole(kind: type[StreamlearnError]) -> None:
    for copied in (pickle.loads(pickle.dumps(kind("a", help="b"))), copy.copy(kind("a", help="b"))):
        assert (type(copied), copied.message, copied.help, str(copied)) == (kind, "a", "b", "a\nhelp: b")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_exit_codes_tell_a_wrong_question_from_a_failure(kind: type[StreamlearnError]) -> None:
    if issubclass(kind, errors.UsageError):
        expected = errors.EXIT_USAGE
    elif issubclass(kind, errors.PartlyDone):
        expected = errors.EXIT_PARTLY
    elif kind is errors.GroupLost:
        expected = errors.EXIT_AGAIN
    else:
        expected = errors.EXIT_FAILED
    assert kind.exit_code == expected


def test_exit_codes_are_those_the_documentation_states() -> None:
    assert (errors.EXIT_DONE, errors.EXIT_FAILED, errors.EXIT_USAGE, errors.EXIT_PARTLY) == (0, 1, 2, 3)
