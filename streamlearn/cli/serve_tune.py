"""`streamlearn serve tune`: the ladders that cost least for what running nodes were asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.table import print_json, print_table
from streamlearn.errors import UsageError

if TYPE_CHECKING:
    from streamlearn.serving.sizes import Sizes
    from streamlearn.serving.tuning import Tuned

__all__ = ["tune"]

_EXECUTABLES = 16


def tune(
    app: AppArgument,
    addresses: Annotated[
        list[str] | None, typer.Argument(metavar="[ADDRESS]...", help="HOST:PORT of the HTTP of nodes that serve it.")
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", metavar="FILE", help="Sizes that were saved; may be repeated.")
    ] = None,
    lognormal: Annotated[
        str,
        typer.Option(
            "--lognormal", metavar="MEAN,SIGMA", help="Sizes of requests that each run alone; costs are the nodes'."
        ),
    ] = "",
    executables: Annotated[
        int | None,
        typer.Option(
            "--executables", metavar="N", min=2, help="How many both graphs may have.", show_default="16 for a length"
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", metavar="N", min=1, max=65_536, help="The last bucket of candidates.", show_default="the present"
        ),
    ] = None,
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Keep what nodes recorded.")] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="Holds what callers must say to be let in.")
    ] = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Say which ladders would cost least for the requests that came, and the settings that make them."""
    from streamlearn.apps import load_app
    from streamlearn.ps import read_token
    from streamlearn.serving.sizes import lognormal as drawn
    from streamlearn.serving.sizes import node_sizes, read_sizes, summed
    from streamlearn.serving.tuning import tune as tuned_for
    from streamlearn.serving.tuning import uncosted

    folder = load_app(app, tuple(set_ or ()))
    settings = folder.settings.serving
    token = None if token_file is None else read_token(token_file).decode()
    recorded = [*(read_sizes(path) for path in file or ()), *(node_sizes(one, token) for one in addresses or ())]
    if not recorded and not lognormal:
        message = "there are no sizes to choose from"
        raise UsageError(message, help="give the HTTP address of a node, --file, or --lognormal 36,0.8")
    sizes: Sizes | None = summed(recorded) if recorded else None
    if save is not None and sizes is not None:
        save.write_bytes(msgspec.json.encode(sizes))
    if lognormal:
        sizes = uncosted(drawn(*_two(lognormal), folder.settings.front.candidates_max), settings, sizes)
    assert sizes is not None
    most = executables or min(_EXECUTABLES * len(sizes.lengths), settings.compiles_max)
    if most > settings.compiles_max:
        message = f"--executables {most} is above serving.compiles_max, which is {settings.compiles_max}"
        raise UsageError(message, help="allow fewer, or raise serving.compiles_max")
    _say(sizes, tuned_for(sizes, most, top), has_costs=bool(recorded), json=json)


def _say(sizes: Sizes, tuned: Tuned, *, has_costs: bool, json: bool) -> None:
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
        facts: dict[str, Any] = {"batches": tuned.batches, "executables": tuned.executables}
        score = sizes.score_rows
        facts["padding_waste_so_far"] = round(score.padding / score.run, 4) if score.run else None
        print_json({**facts, "ladders": rows, "serving": settings})
        return
    print_table(rows, f"{tuned.batches:,} TensorBatches; {tuned.executables} executables proposed", whole=True)
    print("\n[serving]")
    for name, buckets in settings.items():
        print(f"{name} = {buckets}")


def _two(text: str) -> tuple[float, float]:
    try:
        mean, sigma = map(float, text.split(","))
    except ValueError:
        message = f"--lognormal {text!r} is not MEAN,SIGMA"
        raise UsageError(message, help="for example --lognormal 36,0.8") from None
    return mean, sigma
