"""Which shapes have executables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamlearn.errors import ConfigError
from streamlearn.models.description import Description, read_description
from streamlearn.serving.graphs.ladder import Bucket, Ladder
from streamlearn.settings import ServingSettings


@pytest.fixture
def described(exported: Path) -> Description:
    return read_description(exported / "din")


def ladder(described: Description, **given: Any) -> Ladder:
    return Ladder.of(ServingSettings(users_buckets=[1, 4], candidates_buckets=[4, 16], **given), described)


def test_a_ladder_has_users_and_candidates_of_each_length(described: Description) -> None:
    found = ladder(described, lengths=[2, 5])
    assert found.users_max == 4
    assert sorted(found.buckets()) == sorted(
        [Bucket("user", rows, length) for rows in (1, 4) for length in (2, 5)]
        + [Bucket("score", rows, length) for rows in (4, 16) for length in (2, 5)]
    )
    assert ladder(described).lengths == (5,)


def test_what_is_asked_for_is_padded_to_the_next_bucket(described: Description) -> None:
    found = ladder(described, lengths=[2, 5])
    assert [found.users_bucket(users) for users in (1, 2, 4, 5)] == [1, 4, 4, 5]
    assert [found.candidates_bucket(candidates) for candidates in (1, 4, 5, 16, 17)] == [4, 4, 16, 16, 17]


def test_without_a_history_and_without_users_there_is_less(exported: Path) -> None:
    found = ladder(read_description(exported / "only_items"))
    assert list(found.buckets()) == [Bucket("score", 4, 0), Bucket("score", 16, 0)]
    with pytest.raises(ConfigError, match="no slot of the user side is a sequence"):
        ladder(read_description(exported / "only_items"), lengths=[3])


def test_settings_that_contradict_themselves_or_the_graphs_are_refused(described: Description) -> None:
    with pytest.raises(ConfigError, match=r"lengths ends with 4, but the features keep histories of length 5"):
        ladder(described, lengths=[2, 4])
    with pytest.raises(ConfigError, match=r"users_buckets is \[4, 4\], which is not in increasing order"):
        Ladder.of(ServingSettings(users_buckets=[4, 4]), described)
    with pytest.raises(ConfigError, match=r"ladder has 8 executables, but serving.compiles_max is 7"):
        ladder(described, lengths=[2, 5], compiles_max=7)
    user = described.user
    assert user is not None
    flat, history = user.inputs
    fixed = msgspec.structs.replace(history, shape=(None, 5, 7))
    other = msgspec.structs.replace(described, user=msgspec.structs.replace(user, inputs=(flat, fixed)))
    with pytest.raises(ConfigError, match=r"lengths is \[2, 5\], but the graphs only take histories of length 5"):
        ladder(other, lengths=[2, 5])
    assert ladder(other).lengths == (5,)
