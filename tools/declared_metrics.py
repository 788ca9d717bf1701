"""Every metric that the code declares, read from the source. Running the code could miss some.

A metric is a call of a function in `streamlearn.telemetry`. Its arguments must be literal texts, or names that the
same function or module assigns a literal text once. Any other call is an error, so the list is complete.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["ROOT", "DeclaredMetric", "declared_in", "declared_metrics"]

ROOT = Path(__file__).parent.parent
# By function of telemetry: the type in Prometheus, and the names of the positional arguments.
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
    """A declared metric.

    Args:
        name: As Prometheus stores it; a histogram has `_bucket`, `_sum` and `_count` of it.
        kind: `counter`, `gauge` or `histogram`.
        component: The part of streamlearn.
        unit: The last word of its name.
        labels: Names of its labels.
        help: The description.
    """

    name: str
    kind: str
    component: str
    unit: str
    labels: tuple[str, ...]
    help: str

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series in Prometheus."""
        if self.kind != "histogram":
            return (self.name,)
        return tuple(f"{self.name}_{end}" for end in ("bucket", "sum", "count"))


@cache
def declared_metrics() -> tuple[DeclaredMetric, ...]:
    """Return all metrics of the package, sorted by name, each once.

    Raises:
        ValueError: A declaration is not literal, or two declarations of one name differ.
    """
    metrics: dict[str, DeclaredMetric] = {}
    for file in sorted((ROOT / "streamlearn").rglob("*.py")):
        text = file.read_text()
        if file.name == "telemetry.py" or "streamlearn.telemetry" not in text:
            continue
        for metric in declared_in(text, str(file.relative_to(ROOT))):
            if metrics.setdefault(metric.name, metric) != metric:
                message = f"{metric.name} is declared twice, as {metrics[metric.name]} and as {metric}"
                raise ValueError(message)
    return tuple(metrics[name] for name in sorted(metrics))


def declared_in(source: str, where: str) -> Iterator[DeclaredMetric]:
    """Yield the metrics that a module's source declares. `where` names the module in errors.

    Raises:
        ValueError: A declaration is not literal.
    """
    module = ast.parse(source)
    known = _imported(module)
    for scope, names in _scopes(module):
        for node in _own(scope):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
                yield _metric(node, known[node.func.id], names, f"{where}:{node.lineno}")


def _imported(module: ast.Module) -> dict[str, str]:
    """Return the telemetry functions that a module imports, by their local names."""
    return {
        alias.asname or alias.name: alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and node.module == "streamlearn.telemetry"
        for alias in node.names
        if alias.name in _KINDS
    }


def _scopes(module: ast.Module) -> Iterator[tuple[ast.AST, Names]]:
    """Yield the module and each function in it, with the names that are assigned exactly once there."""
    outer = _assigned(module)
    yield module, outer
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            yield node, {**outer, **_assigned(node)}


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, without those of functions in it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from _own(child)


def _assigned(scope: ast.AST) -> Names:
    values: dict[str, ast.expr] = {}
    twice = set()
    for node in _own(scope):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
                if any(isinstance(side, ast.Starred) for pair in pairs for side in pair):
                    pairs = []  # positions do not tell which value belongs to which name
            for name, value in pairs:
                if isinstance(name, ast.Name):
                    twice |= {name.id} & set(values)
                    values[name.id] = value
    return {name: value for name, value in values.items() if name not in twice}


def _metric(call: ast.Call, function: str, names: Names, where: str) -> DeclaredMetric:
    kind, order = _KINDS[function]
    arguments = dict(zip(order, call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}
    texts = {
        name: _text(arguments[name], names, where)
        for name in ("component", "noun", "unit", "help")
        if name in arguments
    }
    labels = _texts(arguments["labels"], names, where) if "labels" in arguments else ()
    unit = "total" if kind == "counter" else texts["unit"]
    name = f"streamlearn_{texts['component']}_{texts['noun']}_{unit}"
    return DeclaredMetric(name, kind, texts["component"], unit, labels, texts["help"])


def _texts(node: ast.expr, names: Names, where: str) -> tuple[str, ...]:
    if isinstance(node, ast.Name) and node.id in names:
        return _texts(names[node.id], names, where)
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(_text(element, names, where) for element in node.elts)
    message = f"{where}: labels must be a list of literal texts, not `{ast.unparse(node)}`"
    raise ValueError(message)


def _text(node: ast.expr, names: Names, where: str) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return _text(names[node.id], names, where)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, names, where) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, names, where)
    message = f"{where}: a metric must be declared with literal texts, not `{ast.unparse(node)}`"
    raise ValueError(message)
