"""`streamlearn ingest` refuses what cannot work before it ends the run there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamlearn.apps import AppFolder
from streamlearn.cli.main import cli
from streamlearn.errors import StreamlearnError, TopicMissing, UsageError
from streamlearn.ingest import ProgressLog, begin_run
from streamlearn.topics import delete_topic
from tests.ingest.history import write_app


@pytest.fixture
def app(tmp_path: Path) -> AppFolder:
    return write_app(tmp_path / "app", Path("/nowhere"), lots=2)


def refused(*words: str) -> BaseException | None:
    return CliRunner().invoke(cli, ["ingest", *words]).exception


@pytest.mark.parametrize(
    ("words", "help"),
    [
        (["--runner", "direct"], "--runner prism"),
        (["--runner", "spark"], "prism"),
        (["--runner", "flink"], "ingest.job_endpoint"),
    ],
)
def test_a_runner_that_cannot_do_it_is_refused_with_what_to_do(app: AppFolder, words: list[str], help: str) -> None:
    error = refused(str(app.folder), *words)
    assert isinstance(error, UsageError)
    assert help in error.help


def test_a_missing_topic_is_named_and_the_run_there_is_goes_on(app: AppFolder) -> None:
    running = begin_run(app)
    delete_topic(app.topic_url("samples"))
    error = refused(str(app.folder))
    assert isinstance(error, TopicMissing)
    assert "samples" in error.message
    with ProgressLog.open(app.topic_url("progress"), app.access) as log:
        assert log.standing().run == running.run


def test_a_folder_that_is_no_application_is_refused(tmp_path: Path) -> None:
    assert isinstance(refused(str(tmp_path)), StreamlearnError)
