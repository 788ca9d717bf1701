"""Shape: figures on the size of the product. `python -m tools.shape` prints a table, then one JSON line.

Python and Rust are measured together. A package is a direct child of `streamlearn/` or a crate of `native/`.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from streamlearn.config import fields_of
from streamlearn.settings import Settings
from tools.phrases import banned_phrases

__all__ = ["LIMITS", "code_lines", "declared_names", "figures", "is_participle", "package_cycles", "package_of"]

ROOT = Path(__file__).parent.parent
LIMITS: Mapping[str, float] = {
    "settings": 163,
    "type_names_shared": 0.03,
    "participle_modules": 0,
    "package_cycles": 0,
    "banned_phrases": 0,
    "public_names": 220,
    "folder_files_max": 25,
    "function_lines_max": 70,
}
"""Upper bounds of figures."""

# Module names that end like a participle or gerund but are nouns of the field.
_NOUNS = {"embedding", "feed", "loading", "padding", "serving", "speed", "staging", "testing"}
_ADVERBS = {"alike", "anew", "apart", "away", "beside", "late", "lately", "then"}
# Irregular participles.
_IRREGULAR = {
    "bound", "done", "drawn", "found", "given", "gone", "heard", "held", "kept", "known", "learnt", "left", "lost",
    "made", "meant", "met", "read", "said", "seen", "sent", "shown", "spoken", "taken", "told", "written",
}  # fmt: skip
_RUST_TYPE = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:struct|enum|trait|union)\s+([A-Z]\w*)", re.MULTILINE)
_RUST_FUNCTION = re.compile(
    r"^(?P<indent> *)(?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?(?:unsafe )?(?:extern \"C\" )?fn \w+"
)


def figures(root: Path = ROOT) -> dict[str, float]:
    """Return every figure of a checkout."""
    python, rust = sorted((root / "streamlearn").rglob("*.py")), sorted((root / "native").glob("*/src/**/*.rs"))
    # To walk a tree costs as much as to parse it.
    nodes = {file: list(ast.walk(ast.parse(file.read_text()))) for file in python}
    functions = [*_python_lengths(nodes.values()), *(length for file in rust for length in _rust_lengths(file))]
    return {
        "settings": len(list(fields_of(Settings))),
        "type_names_shared": round(_shared(root, nodes, rust), 3),
        "participle_modules": sum(is_participle(file.stem) for file in (*python, *rust)),
        "package_cycles": len(package_cycles(_imports(root, nodes))),
        "banned_phrases": len(banned_phrases(root)),
        "public_names": sum(
            len(declared_names(tree) or [])
            for file, (tree, *_) in nodes.items()
            if isinstance(tree, ast.Module)
            if file.name == "__init__.py" and file.parent.parent == root / "streamlearn"
        ),
        "folder_files_max": max(_folder_sizes(root).values()),
        "function_lines_max": max(functions),
        "product_python_lines": sum(len(file.read_text().splitlines()) for file in python),
        "product_rust_lines": sum(len(file.read_text().splitlines()) for file in rust),
    }


def package_of(root: Path, file: Path) -> str:
    """Return the package of a file of the product.

    Examples:
        >>> package_of(Path("/x"), Path("/x/streamlearn/ps/link.py"))
        'ps'
        >>> package_of(Path("/x"), Path("/x/native/join/src/core.rs"))
        'native/join'
    """
    parts = file.relative_to(root).parts
    return f"native/{parts[1]}" if parts[0] == "native" else parts[1].removesuffix(".py")


def is_participle(module: str) -> bool:
    """Return whether a module's name is a bare participle, gerund or adverb.

    Examples:
        >>> [is_participle(name) for name in ("kept", "joining", "alike", "serving", "join_core", "feed")]
        [True, True, True, False, False, False]
    """
    if module in _NOUNS or "_" in module:
        return False
    return module in _IRREGULAR | _ADVERBS or module.endswith(("ed", "ing"))


def package_cycles(imports: Mapping[str, set[str]]) -> list[set[str]]:
    """Return groups of packages that import each other, directly or through others.

    Examples:
        >>> package_cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [{"b", "c"}]
        True
    """
    reach = {name: _reached(imports, name) for name in imports}
    cycles: list[set[str]] = []
    for name in sorted(imports):
        cycle = {other for other in reach[name] if name in reach.get(other, ())}
        if cycle and cycle not in cycles:
            cycles.append(cycle)
    return cycles


def _reached(imports: Mapping[str, set[str]], name: str) -> set[str]:
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        for other in imports.get(waiting.pop(), ()):
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return reached


def _imports(root: Path, nodes: Mapping[Path, list[ast.AST]]) -> dict[str, set[str]]:
    """Return the packages that each package imports, also inside functions and only for types."""
    packages: dict[str, set[str]] = defaultdict(set)
    for file, of_file in nodes.items():
        package = package_of(root, file)
        for node in of_file:
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                is_root = node.module == "streamlearn"
                modules = [f"streamlearn.{alias.name}" for alias in node.names] if is_root else [node.module]
            for module in modules:
                parts = module.split(".")
                if parts[0] == "streamlearn" and len(parts) > 1 and parts[1] != package:
                    packages[package].add(parts[1])
    return dict(packages)


def _shared(root: Path, nodes: Mapping[Path, list[ast.AST]], rust: list[Path]) -> float:
    """Return the share of types whose name also stands in another file of their package."""
    places: dict[tuple[str, str], set[Path]] = defaultdict(set)
    types: list[tuple[str, str]] = []
    for file, of_file in nodes.items():
        names = [node.name for node in of_file if isinstance(node, ast.ClassDef)]
        types += [(package_of(root, file), name) for name in names]
        for name in names:
            places[package_of(root, file), name].add(file)
    for file in rust:
        if package_of(root, file) == "native/python":
            continue  # a type and its binding count once
        names = _RUST_TYPE.findall(file.read_text())
        types += [(package_of(root, file), name) for name in names]
        for name in names:
            places[package_of(root, file), name].add(file)
    return sum(len(places[key]) > 1 for key in types) / len(types)


def _folder_sizes(root: Path) -> dict[Path, int]:
    """Return the number of code files by folder. Folders of tests may have twice as many, so their files count half."""
    sizes: dict[Path, int] = defaultdict(int)
    for top in (
        "streamlearn",
        "benchmarks",
        "tools",
        *(f"native/{crate.name}/src" for crate in (root / "native").iterdir()),
    ):
        for file in (root / top).rglob("*"):
            if file.suffix in (".py", ".rs") and "__pycache__" not in file.parts:
                sizes[file.parent] += 1
    tests = Counter(file.parent for file in (root / "tests").rglob("*.py"))
    return sizes | {folder: (count + 1) // 2 for folder, count in tests.items()}


def declared_names(tree: ast.Module) -> list[str] | None:
    """Return the names in a module's `__all__`, or None if it has none."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert isinstance(node.value, ast.List)
            return [element.value for element in node.value.elts if isinstance(element, ast.Constant)]  # type: ignore[misc]
    return None


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function without its docstring."""
    first = function.body[0]
    is_doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    doc = (first.end_lineno or 0) - first.lineno + 1 if is_doc else 0
    return (function.end_lineno or 0) - function.lineno + 1 - doc


def _python_lengths(nodes: Iterable[list[ast.AST]]) -> Iterator[int]:
    for node in chain.from_iterable(nodes):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield code_lines(node)


def _rust_lengths(file: Path) -> Iterator[int]:
    """Yield the lines of each function in rustfmt's layout: up to the closing brace in the column of its `fn`."""
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines):
        begin = _RUST_FUNCTION.match(line)
        if begin is None:
            continue
        close = f"{begin['indent']}}}"
        for end in range(number, len(lines)):
            if lines[end].rstrip() == close or (end == number and line.rstrip().endswith("}")):
                yield end - number + 1
                break
            if lines[end].rstrip().endswith(";") and end == number:
                break


def main() -> None:
    """Print the table, then the figures as one JSON line; exit with 1 if a bound is exceeded."""
    values = figures()
    for name, value in values.items():
        limit = LIMITS.get(name)
        print(f"{name:24}{value:>10,}" + (f"   at most {limit:g}" if limit is not None else ""))
    print(json.dumps({"figures": values}))
    sys.exit(any(values[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    main()
