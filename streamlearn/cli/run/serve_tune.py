"""`streamlearn serve tune`: the cheapest bucket sizes for the requests that running nodes recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from streamlearn.cli.options import AppArgument, JsonOption, SetOption, option_numbers
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.errors import UsageError

if TYPE_CHECKING:
    from streamlearn.serving.graphs.ladder_tuner import Tuned
    from streamlearn.serving.sizes import Sizes

__all__ = ["tune"]

_EXECUTABLES = 16


def tune(
    app: AppArgument,
    addresses: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ADDRESS]...", help="HTTP address of a node of this application, HOST:PORT."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Read sizes from a file written by --save; may be repeated."),
    ] = None,
    lognormal: Annotated[
        str,
        typer.Option(
            metavar="MEAN,SIGMA",
            help="Assume log-normal request sizes, one request per execution; costs are those of the nodes.",
        ),
    ] = "",
    executables: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, help="Most executables of both graphs.", show_default="16 for each length"),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=65_536, help="Largest candidates bucket.", show_default="the present one"),
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the sizes that the nodes recorded.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token that the nodes expect.")
    ] = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Propose the cheapest bucket sizes for the recorded requests, as settings."""
    from streamlearn.access.token_file import read_token
    from streamlearn.apps import load_app
    from streamlearn.serving.graphs.ladder_tuner import tune as tuned_for
    from streamlearn.serving.graphs.ladder_tuner import uncosted
    from streamlearn.serving.sizes import lognormal as drawn
    from streamlearn.serving.sizes import node_sizes, read_sizes, summed

    folder = load_app(app, tuple(set_ or ()))
    settings = folder.settings.serving
    token = None if token_file is None else read_token(token_file).decode()
    recorded = [
        *(read_sizes(path) for path in file or ()),
        *(node_sizes(node, token) for node in addresses or ()),
    ]
    if not recorded and not lognormal:
        message = "the sizes of requests are missing"
        raise UsageError(message, help="give the HTTP address of a node, --file, or --lognormal 36,0.8")
    sizes: Sizes | None = summed(recorded) if recorded else None
    if save is not None and sizes is not None:
        save.write_bytes(msgspec.json.encode(sizes))
    if lognormal:
        mean, sigma = option_numbers("--lognormal", lognormal, "MEAN,SIGMA", "36,0.8")
        sizes = uncosted(drawn(mean, sigma, folder.settings.front.candidates_max), settings, sizes)
    assert sizes is not None
    executables_max = executables or min(_EXECUTABLES * len(sizes.lengths), settings.compiles_max)
    if executables_max > settings.compiles_max:
        message = f"--executables {executables_max} is above serving.compiles_max, which is {settings.compiles_max}"
        raise UsageError(message, help="allow fewer, or raise serving.compiles_max")
    _print(sizes, tuned_for(sizes, executables_max, top), has_costs=bool(recorded), json=json)


def _print(sizes: Sizes, tuned: Tuned, *, has_costs: bool, json: bool) -> None:
    rows = [
        {
            "graph": graph,
            "ladder": name,
            "buckets": ", ".join(map(str, rungs.buckets)),
            "padding_waste": round(rungs.padding_waste, 3),
            "cost_us" if has_costs else "rows": round(rungs.cost_us, 1),
        }
        for graph, pair in (("user", tuned.users), ("score", tuned.candidates))
        for name, rungs in zip(("present", "proposed"), pair, strict=True)
    ]
    settings = {"users_buckets": list(tuned.users[1].buckets), "candidates_buckets": list(tuned.candidates[1].buckets)}
    if json:
        score = sizes.score_rows
        waste = round(score.padding / score.run, 4) if score.run else None
        facts = {"batches": tuned.batches, "executables": tuned.executables, "padding_waste_so_far": waste}
        print_json({**facts, "ladders": rows, "serving": settings})
        return
    print_table(rows, f"{tuned.batches:,} TensorBatches; {tuned.executables} executables proposed", whole=True)
    print("\n[serving]")
    for name, buckets in settings.items():
        print(f"{name} = {buckets}")
