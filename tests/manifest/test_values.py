"""The values of an application: which of its processes they let run."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlearn.apps import AppFolder
from streamlearn.errors import UsageError
from streamlearn.manifest.values import values_of
from streamlearn.settings import Settings
from streamlearn.testing import small_app
from tests.manifest.value_sets import SETS, objects_of, read_set

__all__: list[str] = []


@pytest.mark.parametrize(
    ("changes", "is_on"),
    [
        ([], False),
        (["retrieval.nearline=off"], False),
        (["retrieval.nearline=found"], True),
        (["retrieval.nearline=ranked"], True),
    ],
)
def test_lists_ahead_of_requests_are_kept_if_the_setting_names_a_kind(
    changes: list[str], is_on: bool, tmp_path: Path
) -> None:
    folder = AppFolder(small_app(), tmp_path, Settings())
    assert values_of(folder, None, (), changes, in_image=True)["nearline"] is is_on


def test_lists_without_a_kind_are_refused() -> None:
    values = read_set(next(file for file in SETS if file.stem == "application_and_folding"))
    assert objects_of(values)
    for settings in ({"nearline": "off"}, {}):
        changed = values | {"settings": values["settings"] | {"retrieval": settings}}
        with pytest.raises(UsageError, match="nearline must be found or ranked, because nearline is on") as refused:
            objects_of(changed)
        assert refused.value.help
