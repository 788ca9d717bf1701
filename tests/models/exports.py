"""Models that are exported: `python -m tests.models.exports FOLDER` exports them all in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from streamlearn.features import FeatureSpec
from streamlearn.models import DcnV2, DeepFm, Din, Model, Ple, export_graphs
from streamlearn.models.logistic import Logistic
from tests.models.networks import Made, two_networks
from tests.models.packed import most_of_all, only_items

__all__ = ["EXPORTED", "LABELS", "export_all"]

LABELS = ("click", "long_view")
EXPORTED: dict[str, tuple[Callable[[], Model], Callable[[], FeatureSpec]]] = {
    "logistic": (Logistic, most_of_all),
    "deepfm": (lambda: DeepFm(hidden=(6,)), most_of_all),
    "dcn_v2": (lambda: DcnV2(hidden=(6,), rank=3), most_of_all),
    "din": (lambda: Din(hidden=(6,), attention=(3,), softmax=True, compute="bfloat16"), most_of_all),
    "ple": (lambda: Ple(expert=(6,), tower=(3,)), most_of_all),
    "keras": (lambda: Made(two_networks), most_of_all),
    "only_items": (lambda: DcnV2(hidden=(6,), rank=3), only_items),
}


def export_all(folder: Path, seed: int) -> None:
    """Export every model into a folder of its name."""
    for name, (make, features) in EXPORTED.items():
        export_graphs(make(), features(), LABELS, folder / name, seed=seed)


if __name__ == "__main__":
    # A process that is set otherwise than the one that compares.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.optimizer.set_experimental_options({"constant_folding": False})
    export_all(Path(sys.argv[1]), seed=0)
