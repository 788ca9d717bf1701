"""The model of an application: a ready-made one by its name, or the application's own."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from streamlearn.apps import AppFolder, app_module
from streamlearn.errors import SpecError, StreamlearnError
from streamlearn.models.protocol import Model

__all__ = ["READY_MADE", "checked_model", "model_of", "own_model"]

# By the name in `App.model`: the module and the class.
READY_MADE = {
    "logistic": ("logistic", "Logistic"),
    "deepfm": ("deepfm", "DeepFm"),
    "dcn_v2": ("dcn_v2", "DcnV2"),
    "din": ("din", "Din"),
    "mmoe": ("mmoe", "Mmoe"),
    "ple": ("mmoe", "Ple"),
}
_CALLS = {
    "build": ("features", "labels", "seed"),
    "user": ("weights", "inputs"),
    "score": ("weights", "user", "user_index", "inputs"),
}


def model_of(folder: AppFolder) -> Model:
    """Create the model of an application, not yet built. This loads TensorFlow.

    `App.model` is the name of a ready-made model, which takes the setting `trainer.compute`; or "module:Name" in a
    module beside app.py, where `Name` is a model, or a class or function without arguments that returns one.

    Raises:
        SpecError: The model does not exist, cannot be created, or lacks a method.
        ConfigError: The module does not exist.
    """
    chosen = folder.app.model
    module, _, name = chosen.partition(":")
    compute = folder.settings.trainer.compute
    if name and compute != "float32":
        message = f"trainer.compute is {compute}, but {chosen} is the application's own model"
        raise SpecError(message, help="choose the number format in the model itself, and remove trainer.compute")
    if name:
        model = own_model(folder, chosen)
    elif module in READY_MADE:
        file, kind_name = READY_MADE[module]
        kind = getattr(importlib.import_module(f"streamlearn.models.{file}"), kind_name)
        model = kind(compute=compute)
    else:
        message = f"unknown ready-made model {chosen!r}"
        hint = "name your own model as MODULE:CLASS, in a module beside app.py"
        raise SpecError(message, help=f"the ready-made models are {', '.join(READY_MADE)}; {hint}")
    checked: Model = checked_model(chosen, model, _CALLS)
    return checked


def own_model(folder: AppFolder, chosen: str) -> Any:
    """Return what "module:Name" names in a module beside app.py; a class or function is called."""
    module, _, name = chosen.partition(":")
    loaded = app_module(folder.folder, module)
    model = getattr(loaded, name, None)
    if model is None:
        message = f"{loaded.__file__} has no {name}"
        raise SpecError(message, help=f"define it there, or name another in app.py: model={chosen!r}")
    if not callable(model):
        return model
    try:
        return model()
    except StreamlearnError:
        raise
    except Exception as error:
        message = f"cannot construct {chosen}: {type(error).__name__}: {error}"
        hint = "it must be callable without arguments; to pass some, name a function that returns the model"
        raise SpecError(message, help=hint) from error


def checked_model(chosen: str, model: Any, calls: Mapping[str, Sequence[str]]) -> Any:
    """Return a model that has some functions, given with their arguments; any other raises a SpecError."""
    for function, arguments in calls.items():
        wrong = _wrong(getattr(model, function, None), len(arguments))
        if wrong:
            message = f"{chosen} cannot be used as a model: its `{function}` {wrong}"
            write = f"write {function}(self, {', '.join(arguments)})"
            raise SpecError(message, help=f'{write}; see "Choose and write models" in the documentation')
    return model


def _wrong(function: Any, arguments: int) -> str:
    """State what is wrong with a method of a model; empty if it takes the arguments."""
    if not callable(function):
        return "is missing" if function is None else f"is {type(function).__name__}"
    try:
        signature = inspect.signature(function)
    except ValueError:  # a compiled function without a signature
        return ""
    try:
        signature.bind(*range(arguments))
    except TypeError as error:
        return f"does not take {arguments} arguments: {error}"
    return ""
