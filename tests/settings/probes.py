"""Probes: tests that name the settings which they show to be heeded; and spies, with which they see values arrive.

`test_complete.py` looks for settings without a probe.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias, TypeVar

import pytest

__all__ = ["Calls", "heeded_by", "heeds", "spied"]

Probe = TypeVar("Probe", bound=Callable[..., object])
Calls: TypeAlias = list[tuple[tuple[Any, ...], dict[str, Any]]]
_SETTINGS = "heeds"


def heeds(*settings: str) -> Callable[[Probe], Probe]:
    """Name the settings, such as "trainer.rate", that a test sets to odd values and sees where they act.

    The test must load them with `load_app`, or by a verb; `conftest.py` checks that each then differs from its default.
    """

    def named(probe: Probe) -> Probe:
        setattr(probe, _SETTINGS, settings)
        return probe

    return named


def heeded_by(probe: Any) -> tuple[str, ...]:
    """The settings that a test names."""
    settings: tuple[str, ...] = getattr(probe, _SETTINGS, ())
    return settings


def spied(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Calls:
    """Note the arguments of each call of a function or class that `owner` names, and pass the calls on.

    With "native.NAME", only what `owner` sees of the native module is replaced.
    """
    module, _, function = name.rpartition(".")
    place = getattr(owner, module) if module else owner
    before, calls = getattr(place, function), Calls()

    def noted(*given: Any, **named: Any) -> Any:
        calls.append((given, named))
        return before(*given, **named)

    if module:
        assert isinstance(place, ModuleType)
        monkeypatch.setattr(owner, module, SimpleNamespace(**{**vars(place), function: noted}))
    else:
        monkeypatch.setattr(owner, function, noted)
    return calls
