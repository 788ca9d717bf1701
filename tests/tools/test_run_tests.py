"""Tests in processes side by side: every test is in one of them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tools.run_tests import APART, SHARES, run_tests, shares, slow_tests

TESTS = Path(__file__).parent.parent


def test_every_test_is_in_one_of_them() -> None:
    files = {str(file.relative_to(TESTS.parent)) for file in TESTS.rglob("test_*.py")}
    apart = {name for name in files if is_in(name, [f"tests/{folder}" for folder in APART])}
    assert apart
    run: list[str] = []
    for words in shares(TESTS):
        ignored = [word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
        named = [word for word in words if not word.startswith("--ignore=")]
        run += [name for name in files if is_in(name, named) and not is_in(name, ignored)]
    assert sorted(run) == sorted(files - apart)
    for share, words in zip(SHARES, shares(TESTS)[1:], strict=True):
        assert {f"tests/{name}" for name in share} <= set(words)


def is_in(file: str, names: list[str]) -> bool:
    return any(file == name or file.startswith(f"{name}/") for name in names)


def test_each_slow_test_exists() -> None:
    for test in (TESTS / "slow.txt").read_text().split():
        file, name = test.split("::")[:2]
        assert name in names_of(TESTS.parent / file), test


@cache
def names_of(file: Path) -> set[str]:
    nodes = ast.parse(file.read_text()).body
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return functions | {ast.unparse(node.targets[0]) for node in nodes if isinstance(node, ast.Assign)}


def test_slow_tests_are_read_from_reports(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    cases = (
        ("tests.cli.test_a", "test_x[1.5-b]", 0.6),
        ("tests.cli.test_a.TestMachine", "runTest", 2.0),
        ("tests.test_b", "test_y", 0.4),
    )
    lines = "".join(f'<testcase classname="{module}" name="{name}" time="{time}"/>' for module, name, time in cases)
    report.write_text(f"<testsuites><testsuite>{lines}</testsuite></testsuites>")
    assert slow_tests(report) == ["tests/cli/test_a.py::test_x", "tests/cli/test_a.py::TestMachine::runTest"]


def test_the_last_lines_name_the_tests_that_failed_and_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tools.run_tests.SHARES", (("ingest",),))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # pytest starts faster
    for folder, text in (
        ("ingest", "def test_no(): assert 0, 7"),
        ("serving", "import absent_module"),
        ("tools", "def"),
    ):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text(f"{text}\n")
    monkeypatch.setattr("tools.run_tests.ROOT", tmp_path)
    assert run_tests(["-q"]) > 0
    assert capfd.readouterr().err.splitlines()[-3:] == [
        "failed: tests/serving/test_serving.py: collection failure",
        "failed: tests/tools/test_tools.py: collection failure",
        "failed: tests/ingest/test_ingest.py::test_no: AssertionError: 7",
    ]  # fmt: skip


@pytest.mark.parametrize(("beside", "status"), [("true", 0), ("echo it failed; exit 3", 3), ("kill -9 $$", 137)])
def test_a_command_that_runs_beside_the_tests_and_fails_is_shown_and_fails_the_run(
    beside: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tools.run_tests.SHARES", (("ingest",),))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # pytest starts faster
    for folder in ("ingest", "serving"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text("def test_it(): pass\n")
    monkeypatch.setattr("tools.run_tests.ROOT", tmp_path)
    assert run_tests(["-q"], beside=beside) == status
    shown = capfd.readouterr().out
    assert shown.count("1 passed") == 2
    assert ("it failed" in shown) == (status == 3)
