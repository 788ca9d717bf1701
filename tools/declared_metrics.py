"""Every metric that the code declares, read from its source: nothing is run, so nothing can be left out by not running.

A metric is a call of one of `streamlearn.telemetry`'s functions. What it is called with has to be readable where it
stands: text, or a name that the same function or module gives a text. Another call is an error, so the list is whole.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["ROOT", "DeclaredMetric", "declared_in", "declared_metrics"]

ROOT = Path(__file__).parent.parent
# What telemetry calls them, what prometheus calls them, and which arguments say what.
_KINDS = {
    "counter": ("counter", ("component", "noun", "help", "labels")),
    "counter_family": ("counter", ("component", "noun", "help", "labels")),
    "gauge": ("gauge", ("component", "noun", "unit", "help", "labels")),
    "gauge_family": ("gauge", ("component", "noun", "unit", "help", "labels")),
    "histogram": ("histogram", ("component", "noun", "unit", "help", "buckets", "labels")),
    "histogram_family": ("histogram", ("component", "noun", "unit", "help", "labels")),
}
Names = Mapping[str, ast.expr]


@dataclass(frozen=True)
class DeclaredMetric:
    """A metric as its declaration says.

    Args:
        name: As Prometheus stores it; a histogram has `_bucket`, `_sum` and `_count` of it.
        kind: `counter`, `gauge` or `histogram`.
        component: Whose it is.
        unit: The last word of its name.
        labels: Names of its labels.
        help: What it is.
    """

    name: str
    kind: str
    component: str
    unit: str
    labels: tuple[str, ...]
    help: str

    @property
    def series(self) -> tuple[str, ...]:
        """The names that its samples have."""
        if self.kind != "histogram":
            return (self.name,)
        return tuple(f"{self.name}_{end}" for end in ("bucket", "sum", "count"))


@cache
def declared_metrics() -> tuple[DeclaredMetric, ...]:
    """All of the package, by name; each once, however often it is declared.

    Raises:
        ValueError: A declaration cannot be read, or two of one name differ.
    """
    found: dict[str, DeclaredMetric] = {}
    for file in sorted((ROOT / "streamlearn").rglob("*.py")):
        text = file.read_text()
        if file.name == "telemetry.py" or "streamlearn.telemetry" not in text:
            continue
        for metric in declared_in(text, str(file.relative_to(ROOT))):
            if found.setdefault(metric.name, metric) != metric:
                message = f"{metric.name} is declared twice, as {found[metric.name]} and as {metric}"
                raise ValueError(message)
    return tuple(found[name] for name in sorted(found))


def declared_in(source: str, where: str) -> Iterator[DeclaredMetric]:
    """What one module declares.

    Args:
        source: Its text.
        where: What it is called in errors.

    Raises:
        ValueError: A declaration cannot be read.
    """
    module = ast.parse(source)
    known = _imported(module)
    for scope, names in _scopes(module):
        for node in _own(scope):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
                yield _metric(node, known[node.func.id], names, f"{where}:{node.lineno}")


def _imported(module: ast.Module) -> dict[str, str]:
    """Telemetry's functions, by what a module calls them."""
    return {
        one.asname or one.name: one.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and node.module == "streamlearn.telemetry"
        for one in node.names
        if one.name in _KINDS
    }


def _scopes(module: ast.Module) -> Iterator[tuple[ast.AST, Names]]:
    """The module and each of its functions, with the names that are given a value once and for all there."""
    outer = _given(module)
    yield module, outer
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            yield node, {**outer, **_given(node)}


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """What is in a scope, and not in a function within."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from _own(child)


def _given(scope: ast.AST) -> Names:
    found: dict[str, ast.expr] = {}
    twice = set()
    for node in _own(scope):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
                if any(isinstance(one, ast.Starred) for pair in pairs for one in pair):
                    pairs = []  # which value is whose is not said by their places
            for name, value in pairs:
                if isinstance(name, ast.Name):
                    twice |= {name.id} & set(found)
                    found[name.id] = value
    return {name: value for name, value in found.items() if name not in twice}


def _metric(call: ast.Call, function: str, names: Names, where: str) -> DeclaredMetric:
    kind, order = _KINDS[function]
    given = dict(zip(order, call.args, strict=False)) | {one.arg: one.value for one in call.keywords if one.arg}
    said = {name: _text(given[name], names, where) for name in ("component", "noun", "unit", "help") if name in given}
    labels = _texts(given["labels"], names, where) if "labels" in given else ()
    unit = "total" if kind == "counter" else said["unit"]
    name = f"streamlearn_{said['component']}_{said['noun']}_{unit}"
    return DeclaredMetric(name, kind, said["component"], unit, labels, said["help"])


def _texts(node: ast.expr, names: Names, where: str) -> tuple[str, ...]:
    if isinstance(node, ast.Name) and node.id in names:
        return _texts(names[node.id], names, where)
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(_text(one, names, where) for one in node.elts)
    message = f"{where}: labels are to be a list of texts, and are `{ast.unparse(node)}`"
    raise ValueError(message)


def _text(node: ast.expr, names: Names, where: str) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return _text(names[node.id], names, where)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(one, names, where) for one in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, names, where)
    message = f"{where}: a metric is to be declared with texts, and `{ast.unparse(node)}` is none"
    raise ValueError(message)
