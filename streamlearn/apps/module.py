"""Modules of an application's folder, imported as members of their own package."""

from __future__ import annotations

import importlib
import sys
import traceback
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from streamlearn.errors import ConfigError, SpecError, StreamlearnError
from streamlearn.features.names import fingerprint

__all__ = ["app_module"]


def app_module(folder: Path | str, name: str) -> ModuleType:
    """Import a module of an application's folder, such as "history".

    Its relative imports reach modules of the same folder, never those of another application.

    Raises:
        ConfigError: The module does not exist.
        SpecError: The module fails.
    """
    path = Path(folder).resolve()
    file = path / f"{name}.py"
    if not file.is_file():
        message = f"{folder} has no {name}.py"
        raise ConfigError(message, help=f"name the folder of an application that has a {name}.py")
    package = f"streamlearn_folder_{fingerprint(str(path))}"
    if package not in sys.modules:
        sys.modules[package] = _package_of(package, path)
    importlib.invalidate_caches()  # the file may be new
    try:
        return importlib.import_module(f"{package}.{name}")
    except StreamlearnError:
        raise
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        where = f"{file}:{lines[-1]}" if lines else str(file)
        message = f"{where} failed: {type(error).__name__}: {error}"
        raise SpecError(message, help="run it alone with python to see more") from error


def _package_of(name: str, path: Path) -> ModuleType:
    # Created by hand: the folder needs no __init__.py, and none is executed.
    package = ModuleType(name)
    package.__path__ = [str(path)]
    package.__spec__ = ModuleSpec(name, loader=None, is_package=True)
    package.__spec__.submodule_search_locations = [str(path)]
    return package
