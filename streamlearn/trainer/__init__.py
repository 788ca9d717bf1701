"""The trainer: learns rows and dense weights from samples, each label once."""

from typing import TYPE_CHECKING

from streamlearn.lazy import lazy_names

if TYPE_CHECKING:
    from streamlearn.trainer.evaluation import evaluate
    from streamlearn.trainer.intake.feed import Until
    from streamlearn.trainer.trainer import Trainer, TrainReport
    from streamlearn.trainer.trainer_setup import ends_of, put_graphs, samples_of, train

__all__ = ["TrainReport", "Trainer", "Until", "ends_of", "evaluate", "put_graphs", "samples_of", "train"]

__getattr__ = lazy_names(
    __name__,
    {
        "evaluation": "evaluate",
        "intake.feed": "Until",
        "trainer": "Trainer TrainReport",
        "trainer_setup": "ends_of put_graphs samples_of train",
    },
)
