"""How broad the product is, and how plainly it speaks: figures that only fall."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.phrases import banned_phrases
from tools.shape import LIMITS, ROOT, figures, is_participle, package_cycles

PROSE = [*(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")), *ROOT.glob("docs/**/*.md")]
# Written from the code.
GENERATED = {"settings.md", "commands.md", "metrics.md"}
COLUMNS_MAX, ARCHITECTURE_LINES_MAX, CHANGELOG_LINES_MAX = 100, 250, 80


@pytest.fixture(scope="module")
def found() -> dict[str, float]:
    return figures()


@pytest.mark.parametrize("name", LIMITS)
def test_the_product_is_no_broader_than_agreed(found: dict[str, float], name: str) -> None:
    assert found[name] <= LIMITS[name], "see what it makes unnecessary before you add to it"


def test_readers_do_not_stumble(found: dict[str, float]) -> None:
    assert not found["banned_phrases"] or not banned_phrases(), "write them in plain English; CONTRIBUTING.md says how"


@pytest.mark.parametrize(
    "text",
    [
        "What is missing is needed.",
        "It is no place of a shard.",
        "a version, of which some are",
        "it begins anew",
        "That is said to anybody.",
        "so many of them",
        "the half is the front's",
    ],
)
def test_a_phrase_that_makes_readers_stop_is_found(text: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(f"# Page\n\n{text}\n")
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        (tmp_path / name).write_text("Plain words.\n")
    assert len(banned_phrases(tmp_path)) == 1


@pytest.mark.parametrize("file", [file for file in PROSE if file.name not in GENERATED], ids=lambda file: file.name)
def test_prose_has_one_width(file: Path) -> None:
    is_code, long = False, []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        is_code ^= line.lstrip().startswith("```")
        is_prose = not is_code and not line.startswith("    ") and not line.lstrip().startswith("|")
        if len(line) > COLUMNS_MAX and is_prose and " " in line.strip():
            long.append(f"{file.name}:{number}")
    assert not long, f"more than {COLUMNS_MAX} columns"


def test_the_map_and_the_changelog_are_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= ARCHITECTURE_LINES_MAX
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= CHANGELOG_LINES_MAX


def test_modules_are_named_by_nouns() -> None:
    assert [is_participle(name) for name in ("asked", "noted", "alike", "kept")] == [True] * 4
    assert not any(map(is_participle, ("join_core", "serving", "feed", "pointer")))


def test_a_cycle_between_packages_is_found() -> None:
    assert package_cycles({"a": {"b"}, "b": {"a"}, "c": set()}) == [{"a", "b"}]
    assert package_cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
