"""Progressive validation: scores first predictions once their labels are final, and logs the scores."""

from streamlearn.trainer.validation.score import WindowScore
from streamlearn.trainer.validation.score_log import ScoreColumns, ScoreLog, read_scores, scores_folder
from streamlearn.trainer.validation.validation import Predicted, ProgressiveValidation

__all__ = [
    "Predicted",
    "ProgressiveValidation",
    "ScoreColumns",
    "ScoreLog",
    "WindowScore",
    "read_scores",
    "scores_folder",
]
