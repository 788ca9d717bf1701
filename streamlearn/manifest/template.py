"""Template: plain data with places that values fill. It does not know Kubernetes, and not how it is written.

A text may have `@PATH@`, which is replaced by a value; `@name@` is the name of the installation, and `@key@` the key in
an `Each`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["AppToml", "Each", "Hash", "Part", "Refuse", "Splice", "Sum", "Test", "Value", "When", "unless"]


@dataclass(frozen=True)
class Test:
    """Whether a value is not empty, begins with `prefix`, is `equal` or `above`, or is `longer`; or the opposite."""

    path: str
    prefix: str = ""
    equal: str = ""
    longer: int = 0
    above: int = 0
    is_opposite: bool = False


def unless(path: str, *, prefix: str = "", above: int = 0) -> Test:
    """Return the opposite of a test."""
    return Test(path, prefix, above=above, is_opposite=True)


@dataclass(frozen=True)
class When:
    """Data that is there if all tests hold, and otherwise other data or none. In a list, a list gives its items."""

    tests: Test | tuple[Test, ...]
    then: Any
    otherwise: Any = None

    @property
    def all(self) -> tuple[Test, ...]:
        """The tests."""
        return (self.tests,) if isinstance(self.tests, Test) else self.tests


@dataclass(frozen=True)
class Value:
    """The value of a path; of `fallback` if it is empty."""

    path: str
    fallback: str = ""


@dataclass(frozen=True)
class Sum:
    """The value of a path, rounded up, some times, and a number."""

    path: str
    times: int
    number: int


@dataclass(frozen=True)
class Splice:
    """All that a value has, in the place of an item of a list, or of a key of a mapping."""

    path: str


@dataclass(frozen=True)
class Part:
    """Items of a list, or as a key those of a mapping, that several files have; a chart writes them once."""

    name: str
    data: Any = field(compare=False)


@dataclass(frozen=True)
class Each:
    """An item for each key of a value."""

    path: str
    item: Any


@dataclass(frozen=True)
class Refuse:
    """An end with this message if all tests hold."""

    tests: tuple[Test, ...]
    message: str


@dataclass(frozen=True)
class AppToml:
    """The text of app.toml: the value `settings`, changed by those of `fixed` whose tests hold."""

    fixed: tuple[tuple[Test | None, str, str, str | list[str]], ...]  # test, section, name, value
    shard: str  # the address of a shard; `@index@` is its number


@dataclass(frozen=True)
class Hash:
    """The hash of the objects of a file, so that what reads them starts again when they change."""

    file: str
