"""The trainer: samples in, rows and dense weights that have learned them out, each label once."""

from typing import TYPE_CHECKING

from streamlearn.lazy import lazy_names

if TYPE_CHECKING:
    from streamlearn.trainer.evaluation import Evaluated, Pass, evaluate
    from streamlearn.trainer.feed import Until
    from streamlearn.trainer.learning import Tally
    from streamlearn.trainer.split import Asked
    from streamlearn.trainer.trainer import Trainer, TrainReport
    from streamlearn.trainer.training import ends_of, train

__all__ = [
    "Asked",
    "Evaluated",
    "Pass",
    "Tally",
    "TrainReport",
    "Trainer",
    "Until",
    "ends_of",
    "evaluate",
    "train",
]

__getattr__ = lazy_names(
    __name__,
    {
        "evaluation": "Evaluated Pass evaluate",
        "feed": "Until",
        "learning": "Tally",
        "split": "Asked",
        "trainer": "Trainer TrainReport",
        "training": "ends_of train",
    },
)
