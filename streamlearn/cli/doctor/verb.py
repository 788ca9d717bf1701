"""`streamlearn doctor`: checks the installation, services, the GPU and an application, and says how to fix them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamlearn.cli.options import JsonOption, SetOption
from streamlearn.cli.output.table import print_json
from streamlearn.errors import EXIT_FAILED, UsageError
from streamlearn.hints import Given, completed
from streamlearn.printable import printable

if TYPE_CHECKING:
    from streamlearn.cli.doctor.machine_findings import Finding

__all__ = ["doctor"]

COLOURS = {"ok": "green", "missing": "yellow", "wrong": "red"}


def doctor(
    app: Annotated[
        Path | None, typer.Option(metavar="APP", help="Also check the schemas and topics of this application.")
    ] = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Check versions, the native build, services and the GPU; exit with status 1 if something is wrong.

    Optional components that are missing are listed but do not affect the status.
    """
    if set_ and app is None:
        message = "--set without --app: it changes the settings of an application"
        raise UsageError(message, help="name the application with --app")
    findings, given = [], Given.of({"app": app, "set_": set_})
    for finding in _findings(app, set_ or []):
        findings.append(finding)
        if not json:
            _print(finding, given)  # at once, because the next check may wait for a timeout
    if json:
        print_json([asdict(finding) for finding in findings])
    wrong, missing = ([found.what for found in findings if found.state == state] for state in ("wrong", "missing"))
    if not json:
        typer.echo(_summary(wrong, missing))
    if wrong:
        raise typer.Exit(EXIT_FAILED)


def _summary(wrong: Sequence[str], missing: Sequence[str]) -> str:
    summary = f"fix what is wrong: {', '.join(wrong)}" if wrong else "nothing is wrong"
    return f"{summary}; missing but optional: {', '.join(missing)}" if missing else summary


def _findings(app: Path | None, overrides: list[str]) -> Iterator[Finding]:
    from streamlearn.cli.doctor.machine_findings import machine_findings

    yield from machine_findings()
    if app is not None:
        from streamlearn.cli.doctor.app_findings import app_findings

        yield from app_findings(app, overrides)


def _print(finding: Finding, given: Given) -> None:
    typer.secho(f"{finding.state:8}", fg=COLOURS[finding.state], nl=False)
    typer.echo(printable(f"{finding.what}: {finding.detail}"))
    if finding.help:
        typer.echo(printable(f"{'':8}{completed(finding.help, given)}"))
