"""The model of serving peers: exported graphs and rows of tables, called on merged requests by plain TensorFlow.

It runs in the environments of peers, without this project. A request is one int32 array: the rows of user slots, of the
padded history, and of each candidate's slots; `serving_workload` makes them.
"""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.peers.serving_folder import FOLDER, GRAPHS, ROWS, WEIGHTS

__all__ = ["ServedModel", "served_model"]

_USERS = (1, 4, 16)
_CANDIDATES = (8, 16, 32, 64, 128, 256, 512)

Request = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]


class ServedModel:
    """A model with compiled executables of all shapes.

    Weights are constants of the graphs, and one call runs both graphs: the user side is computed once per request.

    Args:
        folder: The folder of graphs, weights and rows; row 0 is the padding of histories.
        users: Numbers of requests of executables, increasing; smaller calls are padded.
        candidates: Numbers of candidates, increasing. Larger requests are scored in several calls.
    """

    def __init__(self, folder: Path, users: Sequence[int] = _USERS, candidates: Sequence[int] = _CANDIDATES) -> None:
        about = json.loads((folder / GRAPHS / "graphs.json").read_text())
        # Workers share the pages of one file.
        self._rows = np.asarray(np.load(folder / ROWS, mmap_mode="r"))
        self._dim = int(self._rows.shape[1])
        of_user, of_item = about["pack"]["user"], about["pack"]["item"]
        self._user_slots, self._item_slots = (side["flat_width"] // self._dim for side in (of_user, of_item))
        self._places = int(of_user["sequence_length"])
        assert not self._places or of_user["sequence_width"] == self._dim + 1, "one sequence, and its mask"
        self._head = self._user_slots + self._places
        self._users, self._candidates = tuple(users), tuple(candidates)
        graphs = tf.saved_model.load(str(folder / GRAPHS))
        with np.load(folder / WEIGHTS) as named:
            weights = [named[weight["name"]] for weight in about["weights"]]
        self._calls = self._compiled(graphs.user, graphs.score, weights)

    def score(self, requests: Sequence[Request]) -> list[Scores]:
        """Return the probabilities of each request's candidates."""
        scores_of: list[list[Scores]] = [[] for _ in requests]
        for part in self._parts(requests):
            scores = self._call([(requests[at][: self._head], items) for at, items in part])
            begin = 0
            for at, items in part:
                scores_of[at].append(scores[begin : begin + len(items)])
                begin += len(items)
        return [
            pieces[0] if len(pieces) == 1 else np.concatenate(pieces or [np.empty(0, np.float32)])
            for pieces in scores_of
        ]

    def _parts(self, requests: Sequence[Request]) -> Iterator[list[tuple[int, npt.NDArray[np.int32]]]]:
        """Yield the calls: for each, the numbers of requests, and their candidates."""
        most, part, count = self._candidates[-1], list[tuple[int, npt.NDArray[np.int32]]](), 0
        for at, request in enumerate(requests):
            items = request[self._head :].reshape(-1, self._item_slots)
            for begin in range(0, len(items), most):
                piece = items[begin : begin + most]
                if part and (count + len(piece) > most or len(part) == self._users[-1]):
                    yield part
                    part, count = [], 0
                part.append((at, piece))
                count += len(piece)
        if part:
            yield part

    def _call(self, part: Sequence[tuple[Request, npt.NDArray[np.int32]]]) -> Scores:
        counts = [len(items) for _, items in part]
        users, candidates = _bucket(self._users, len(part)), _bucket(self._candidates, sum(counts))
        heads, items = np.zeros((users, self._head), np.int32), np.zeros((candidates, self._item_slots), np.int32)
        index, begin = np.zeros(candidates, np.int32), 0
        for at, (head, own) in enumerate(part):
            heads[at] = head
            items[begin : begin + len(own)] = own
            index[begin : begin + len(own)] = at
            begin += len(own)
        inputs = [tf.constant(self._gathered(heads[:, : self._user_slots]))]
        if self._places:
            inputs.append(tf.constant(self._history(heads[:, self._user_slots :])))
        inputs += [tf.constant(index), tf.constant(self._gathered(items))]
        return self._calls[users, candidates](*inputs).numpy()[:begin]  # type: ignore[no-any-return]

    def _gathered(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        return np.take(self._rows, ids, axis=0).reshape(len(ids), -1)

    def _history(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        block = np.empty((*ids.shape, self._dim + 1), np.float32)
        block[..., :-1] = np.take(self._rows, ids, axis=0)
        block[..., -1] = ids != 0
        return block

    def _compiled(
        self, user: Any, score: Any, weights: Sequence[npt.NDArray[np.float32]]
    ) -> dict[tuple[int, int], Any]:
        of_user, of_score = user.concrete_functions[0], score.concrete_functions[0]

        def both(*inputs: Any) -> Any:
            constants = [tf.constant(weight) for weight in weights]
            *of_users, index, items = inputs
            known = of_user(*constants, *of_users)
            kept = [known[name] for name in ("flat", "sequence") if name in known]
            return tf.sigmoid(of_score(*constants, *kept, index, items)["scores"][:, 0])

        compiled = tf.function(both, jit_compile=True, autograph=False)
        calls = {}
        for users in self._users:
            for candidates in self._candidates:
                shapes = [tf.TensorSpec([users, self._user_slots * self._dim])]
                if self._places:
                    shapes.append(tf.TensorSpec([users, self._places, self._dim + 1]))
                shapes += [
                    tf.TensorSpec([candidates], tf.int32),
                    tf.TensorSpec([candidates, self._item_slots * self._dim]),
                ]
                call = compiled.get_concrete_function(*shapes)
                call(*(tf.zeros(shape.shape, shape.dtype) for shape in shapes))  # compiles
                calls[users, candidates] = call
        return calls


def served_model() -> ServedModel:
    """Return the model of the folder in the environment, limited to one thread."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return ServedModel(Path(os.environ[FOLDER]))


def _bucket(ladder: Sequence[int], count: int) -> int:
    return ladder[bisect.bisect_left(ladder, count)]
