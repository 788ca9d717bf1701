"""Models: the protocol of every model, and ready-made models, which load TensorFlow on first use."""

from typing import TYPE_CHECKING

from streamlearn.lazy import lazy_names
from streamlearn.models.protocol import Model, PackedSide

if TYPE_CHECKING:
    from streamlearn.models.chosen import model_of
    from streamlearn.models.dcn_v2 import DcnV2
    from streamlearn.models.deepfm import DeepFm
    from streamlearn.models.din import Din
    from streamlearn.models.graphs import Graphs, load_graphs
    from streamlearn.models.keras_model import KerasModel
    from streamlearn.models.mmoe import Mmoe, Ple
    from streamlearn.models.saved_model import export_graphs
    from streamlearn.models.tower import dropout

__all__ = [
    "DcnV2",
    "DeepFm",
    "Din",
    "Graphs",
    "KerasModel",
    "Mmoe",
    "Model",
    "PackedSide",
    "Ple",
    "dropout",
    "export_graphs",
    "load_graphs",
    "model_of",
]

__getattr__ = lazy_names(
    __name__,
    {
        "chosen": "model_of",
        "dcn_v2": "DcnV2",
        "deepfm": "DeepFm",
        "din": "Din",
        "saved_model": "export_graphs",
        "graphs": "Graphs load_graphs",
        "keras_model": "KerasModel",
        "mmoe": "Mmoe Ple",
        "tower": "dropout",
    },
)
