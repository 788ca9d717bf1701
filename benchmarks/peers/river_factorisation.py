"""River's biased matrix factorisation on ratings: each is predicted, and then learned.

It runs in the environment of the peer, as a script: FILE has `user_id`, `film_id` and `stars`. The rates are the best
of five pairs that were tried on these ratings.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from river import optim, reco  # type: ignore[import-not-found]

_FACTORS, _RATE, _SPREAD = 8, 0.05, 0.1


def mean_absolute_error(file: str) -> float:
    """Return the mean absolute error of all first predictions."""
    rows = np.load(file)
    model = reco.BiasedMF(
        n_factors=_FACTORS,
        bias_optimizer=optim.SGD(_RATE),
        latent_optimizer=optim.SGD(_RATE),
        latent_initializer=optim.initializers.Normal(mu=0.0, sigma=_SPREAD, seed=1),
    )
    total, stars = 0.0, rows["stars"].tolist()
    for user, film, star in zip(rows["user_id"].tolist(), rows["film_id"].tolist(), stars, strict=True):
        total += abs(model.predict_one(user, film) - star)
        model.learn_one(user, film, star)
    return total / len(stars)


if __name__ == "__main__":
    print(json.dumps({"mae": mean_absolute_error(sys.argv[1])}))
