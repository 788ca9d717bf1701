"""Style as a test: layers, imports, lengths, names, documentation. CONTRIBUTING.md says why each rule is there."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings

import streamlearn
from tools.shape import code_lines, declared_names

ROOT = Path(__file__).parent.parent
PYTHON_LINES_MAX, RUST_LINES_MAX, FUNCTION_LINES_MAX = 500, 700, 70
FUNCTION_LINES_MEDIAN_MAX, POSITIONAL_MAX = 10, 5

# The core, lowest rank first: a part imports only parts of lower ranks.
RANKS: tuple[set[str], ...] = (
    {
        "bounded_server",
        "cache",
        "clock",
        "errors",
        "lazy",
        "loopback",
        "open_files",
        "printable",
        "process_exit",
        "resource",
        "settings",
    },
    {"extras", "hints", "native", "niceness", "pulse", "struct_decoder", "telemetry", "times"},
    {"config", "access", "features", "given_up", "marks", "topics"},
    {"apps", "metrics_server"},
    {"models", "schemas"},
    {"events", "interactions", "samples"},
    {"replay", "table"},
    {"versions"},
    {"library", "online"},
)
CORE = set().union(*RANKS)
# The components above the core, and which of each other they may import beside it.
ALLOWED: dict[str, set[str]] = {
    "testing": set(),
    "ingest": set(),
    "ps": set(),
    "serving": set(),
    "load": {"ingest", "serving"},
    "console": set(),
    "nearline": {"load", "serving"},
    "gateway": {"supervision"},
    "manifest": set(),
    "supervision": set(),
    "publisher": {"ps"},
    "trainer": {"ps", "publisher"},
    "cli": {
        "console",
        "gateway",
        "ingest",
        "load",
        "manifest",
        "nearline",
        "ps",
        "publisher",
        "serving",
        "supervision",
        "trainer",
    },
}
# Who may import a package that is heavy or that one module stands for, as path prefixes.
WALLS = {
    # A benchmark's peers run in environments of their own, and are never imported by what runs in ours.
    "tensorflow": (
        "streamlearn/trainer/",
        "streamlearn/serving/",
        "streamlearn/models/",
        "benchmarks/peers/",
        "examples/synthetic/model.py",
        "tests/trainer/",
        "tests/models/",
        "tests/serving/",
        "tests/settings/",
        "tests/versions/saved_models.py",
    ),
    "keras": ("streamlearn/trainer/", "streamlearn/models/", "tests/models/", "benchmarks/peers/"),
    "apache_beam": ("streamlearn/ingest/", "pipelines/", "tests/", "benchmarks/"),
    "kafka": (
        "streamlearn/topics/kafka_connections.py",
        "streamlearn/topics/kafka_link.py",
        "tools/",
        "tests/",
        "benchmarks/",
    ),
    "redis": ("streamlearn/versions/", "streamlearn/online/", "benchmarks/features.py", "tools/", "tests/"),
    "cryptography": ("streamlearn/versions/format/signatures.py", "tests/"),
    "matplotlib": ("streamlearn/cli/report/figures.py",),
    # The GPU kit runs in an environment without TensorFlow.
    **dict.fromkeys(("jax", "jaxlib"), ("tools/gpu/",)),
    "fsspec": ("streamlearn/versions/", "tests/"),
    **dict.fromkeys(
        (
            "fbgemm_gpu",
            "feast",
            "mosec",
            "pandas",
            "tensorflow_recommenders_addons",
            "tf_keras",
            "torch",
            "triton_python_backend_utils",
        ),
        ("benchmarks/peers/",),
    ),
    **dict.fromkeys(("faiss", "hnswlib", "usearch"), ("benchmarks/retrieval/",)),
}
HEAVY = (
    "tensorflow",
    "keras",
    "apache_beam",
    "kafka",
    "redis",
    "pyarrow",
    "fastavro",
    "matplotlib",
    "numpy",
    "streamlearn._native",
)
BAD_FILES = {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc"}
BAD_CLASSES = re.compile(r".*(Manager|Handler|Impl|Helper|Utils)$")
# An address of a package registry; and the paths of whatever machine this runs on.
REGISTRY = re.compile(r"https?://[^\s\"]*(?:/simple\b|/maven2\b|registry\.|crates\.|proxy\.)")
PLACES = tuple(f"{place}/" for place in (ROOT, Path.home()) if place != Path("/"))


def _tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    files = [ROOT / name for name in listed if not suffixes or name.endswith(suffixes)]
    return sorted(file for file in files if file.is_file())


PYTHON = _tracked(".py")
RUST = _tracked(".rs")
PACKAGE = [file for file in PYTHON if file.is_relative_to(ROOT / "streamlearn")]


@cache
def _tree(file: Path) -> ast.Module:
    """The tree of a file; whoever only collects tests parses none."""
    return ast.parse(file.read_text())


@cache
def _nodes(file: Path) -> list[ast.AST]:
    """All nodes of the tree: to walk it costs as much as to parse it."""
    return list(ast.walk(_tree(file)))


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@cache
def _imports(file: Path) -> list[tuple[str, str | None]]:
    """Every (module, name) imported anywhere in a module; name is None for `import module`."""
    return list(_imported(file))


def _imported(file: Path) -> Iterator[tuple[str, str | None]]:
    for node in _nodes(file):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def _functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in _nodes(file):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _part(file: Path) -> str:
    return file.relative_to(ROOT / "streamlearn").parts[0].removesuffix(".py")


def _lower_ranks(part: str) -> set[str]:
    rank = next(number for number, parts in enumerate(RANKS) if part in parts)
    return set().union(*RANKS[:rank])


def test_a_part_imports_only_what_its_rank_allows() -> None:
    wrong = []
    for file in PACKAGE:
        part = _part(file)
        if part in ("__init__", "__main__", "_native"):
            continue
        lower = CORE if part in ALLOWED else _lower_ranks(part)
        allowed = lower | ALLOWED.get(part, set()) | {part}
        for module, name in _imports(file):
            if not module.startswith("streamlearn"):
                continue
            path = module.split(".")[1:] or [name or ""]
            if path[0] and path[0] not in allowed and path[0] not in ("_native", "__version__"):
                wrong.append(f"{_name(file)} imports streamlearn.{path[0]}")
    assert not wrong, "\n".join(wrong)


def test_only_one_door_leads_to_the_compiled_module() -> None:
    wrong = [
        _name(file)
        for file in PYTHON
        for module, name in _imports(file)
        if (module == "streamlearn" and name == "_native") or module == "streamlearn._native"
        if _name(file) != "streamlearn/native.py"
    ]
    assert not wrong, "import it as `from streamlearn.native import native`: " + ", ".join(wrong)


def test_only_one_module_decodes_structs() -> None:
    formats = {"json", "msgpack", "toml", "yaml"}
    direct = re.compile(rf"msgspec\.(convert|({'|'.join(formats)})\.(decode|Decoder))\b")
    found = [_name(file) for file in PACKAGE if file.stem != "struct_decoder" and direct.search(file.read_text())]
    found += [
        f"{_name(file)} imports {name} of {module}"
        for file in PACKAGE
        for module, name in _imports(file)
        if module.startswith("msgspec.") or (module == "msgspec" and name in {*formats, "convert"})
        if module != "msgspec.structs"
    ]
    assert not found, f"use streamlearn.struct_decoder, which threads may share and which raises one error: {found}"


def test_patterns_do_not_take_a_newline_for_the_end() -> None:
    wrong = []
    for file in PACKAGE:
        for call in (node for node in _nodes(file) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            patterns = [one.value for one in call.keywords if one.arg == "pattern"]
            patterns += call.args[:1] if name.startswith("re.") and "re.M" not in ast.unparse(call) else []
            wrong += [
                f"{_name(file)}:{call.lineno}"
                for one in patterns
                if isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value.endswith("$")
            ]
    assert not wrong, r"`$` also matches before a last newline: end with `\Z`, or use fullmatch: " + ", ".join(wrong)


@pytest.mark.parametrize("package", WALLS)
def test_a_walled_package_is_imported_only_behind_its_wall(package: str) -> None:
    wrong = [
        _name(file)
        for file in PYTHON
        for module, _ in _imports(file)
        if module.split(".")[0] == package and not _name(file).startswith(WALLS[package])
    ]
    assert not wrong, f"{package} is imported by {', '.join(wrong)}"


@pytest.mark.parametrize("statement", ["import streamlearn", "from streamlearn.cli.main import cli"])
def test_importing_the_package_or_its_command_line_loads_nothing_heavy(statement: str) -> None:
    script = f"import sys; {statement}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_help_of_every_verb_loads_nothing_heavy() -> None:
    script = (
        "import contextlib, io, sys, typer; from streamlearn.cli.main import cli\n"
        "names = [command.name for command in cli.registered_commands]\n"
        "names += [group.name for group in cli.registered_groups]\n"
        "program = typer.main.get_command(cli)\n"
        "with contextlib.redirect_stdout(io.StringIO()) as said:\n"
        "    verbs = ([], *([name] for name in names))\n"
        "    statuses = [program.main([*verb, '--help'], standalone_mode=False) for verb in verbs]\n"
        "assert not any(statuses), statuses\n"
        "assert said.getvalue().count('Usage: ') == len(verbs), said.getvalue()\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_files_are_short() -> None:
    long = [
        f"{_name(file)} has {lines} lines"
        for files, most in ((PYTHON, PYTHON_LINES_MAX), (RUST, RUST_LINES_MAX))
        for file in files
        if (lines := len(file.read_text().splitlines())) > most
    ]
    assert not long, "split them by noun: " + ", ".join(long)


def test_functions_are_short() -> None:
    found = [(code_lines(f), f"{_name(file)}:{f.name}") for file in PYTHON for f in _functions(file)]
    long = [f"{name} has {lines} lines" for lines, name in found if lines > FUNCTION_LINES_MAX]
    assert not long, ", ".join(long)
    assert statistics.median(lines for lines, _ in found) <= FUNCTION_LINES_MEDIAN_MAX


def test_rust_functions_are_held_short_by_clippy() -> None:
    settings = tomllib.loads((ROOT / "clippy.toml").read_text())
    assert settings["too-many-lines-threshold"] == FUNCTION_LINES_MAX
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    assert workspace["lints"]["clippy"]["too_many_lines"] == "deny"
    for member in workspace["members"]:
        assert tomllib.loads((ROOT / member / "Cargo.toml").read_text())["lints"] == {"workspace": True}


def test_no_file_of_native_tests_is_left_out_of_its_binary() -> None:
    mains = list(ROOT.glob("native/*/tests/all/main.rs"))
    assert mains
    for main in mains:
        listed = set(re.findall(r"^mod (\w+);", main.read_text(), flags=re.M))
        there = {path.stem for path in main.parent.iterdir()} - {"main"}
        assert listed == there, f"{main.relative_to(ROOT)} lists {listed ^ there} wrongly"


def test_functions_take_few_positional_arguments() -> None:
    many = []
    for file in PACKAGE:
        if _part(file) == "cli":
            continue  # a verb's parameters are its options
        for function in _functions(file):
            names = [*function.args.posonlyargs, *function.args.args]
            # A step's state and timers are handed in by Beam, which knows them by their defaults.
            handed_in = [one for one in function.args.defaults if ast.unparse(one).startswith("beam.DoFn.")]
            names = names[: len(names) - len(handed_in)]
            count = len([name for name in names if name.arg not in ("self", "cls")])
            if count > POSITIONAL_MAX:
                many.append(f"{_name(file)}:{function.name} takes {count}")
    assert not many, ", ".join(many)


def test_modules_say_what_they_are() -> None:
    silent = [_name(file) for file in PYTHON if file.read_text().strip() and not ast.get_docstring(_tree(file))]
    silent += [_name(file) for file in RUST if not file.read_text().startswith("//!")]
    assert not silent, "begin with a docstring: " + ", ".join(silent)


def test_all_lists_exactly_what_is_public() -> None:
    wrong = []
    for file in PACKAGE:
        tree, declared = _tree(file), declared_names(_tree(file))
        if declared is None:
            wrong.append(f"{_name(file)} has no __all__")
            continue
        if sorted(set(declared)) != sorted(declared):
            wrong.append(f"{_name(file)} lists a name twice")
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        defined = {node.name for node in tree.body if isinstance(node, kinds)}
        public = {name for name in defined if not name.startswith("_")}
        missing = public - set(declared)
        if missing and file.name != "__init__.py" and _part(file) != "cli":
            wrong.append(f"{_name(file)} does not list {', '.join(sorted(missing))}")
    assert not wrong, "\n".join(wrong)


def test_a_module_imports_only_what_another_lists() -> None:
    listed = {}
    for file in PACKAGE:
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        listed[module] = set(declared_names(_tree(file)) or [])
    wrong = []
    for file in PYTHON:
        for module, name in _imports(file):
            private = module in listed and name is not None and name not in listed[module]
            if private and f"{module}.{name}" not in listed and name != "_native":
                wrong.append(f"{_name(file)} imports {name} of {module}")
    assert not wrong, "list them in __all__ there: " + "\n".join(wrong)


def test_package_files_only_reexport() -> None:
    wrong = []
    for file in PACKAGE:
        if file.name != "__init__.py":
            continue
        allowed = (ast.Import, ast.ImportFrom, ast.Expr, ast.Assign, ast.AnnAssign)
        lazy = (
            node for node in _tree(file).body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        )
        typed = [inner for node in lazy for inner in node.body]
        body = [node for node in _tree(file).body if not (isinstance(node, ast.If) and set(node.body) <= set(typed))]
        wrong += [f"{_name(file)}:{node.lineno}" for node in (*body, *typed) if not isinstance(node, allowed)]
    assert not wrong, ", ".join(wrong)


def test_names_say_what_a_thing_is() -> None:
    wrong = [_name(file) for file in (*PYTHON, *RUST) if file.stem in BAD_FILES]
    wrong += [
        f"{_name(file)}:{node.name}"
        for file in PYTHON
        for node in _nodes(file)
        if isinstance(node, ast.ClassDef) and BAD_CLASSES.match(node.name)
    ]
    assert not wrong, ", ".join(wrong)


def test_no_test_sleeps() -> None:
    wrong = []
    for file in PYTHON:
        if not file.is_relative_to(ROOT / "tests"):
            continue
        for node in _nodes(file):
            called = isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep")
            if called and isinstance(node, ast.Call):
                wrong.append(f"{_name(file)}:{node.lineno}")
    assert not wrong, "wait on a condition with streamlearn.testing.wait_until: " + ", ".join(wrong)


def test_the_version_is_one() -> None:
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
    assert cargo["workspace"]["package"]["version"] == streamlearn.__version__
    assert f"## {streamlearn.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_setting_command_and_metric_is_documented() -> None:
    from tools.write_docs import PAGES

    for name, page in PAGES.items():
        assert (ROOT / name).read_text() == page(), "run `python -m tools.write_docs`"


def test_commands_in_the_documentation_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    verbs = _verbs()
    wrong = []
    for file in _tracked(".md"):
        for block in re.findall(r"^```(?:sh|console|bash)\n(.*?)^```", file.read_text(), flags=re.M | re.S):
            wrong += [f"{_name(file)}: {line}" for line in block.splitlines() if not _exists(line, targets, verbs)]
    assert not wrong, "\n".join(wrong)


def _verbs() -> set[str]:
    from streamlearn.cli.main import cli

    groups = {group.name for group in cli.registered_groups if group.name}
    return groups | {command.name for command in cli.registered_commands if command.name}


def _exists(line: str, targets: set[str], verbs: set[str]) -> bool:
    """Whether a command of a code block is one we have; other programs' commands are not ours to judge."""
    words = line.removeprefix("$ ").split()
    while words and "=" in words[0] and not words[0].startswith("-"):
        words.pop(0)
    match words:
        case ["make", target, *_]:
            return "=" in target or target in targets
        case ["streamlearn", verb, *_]:
            return verb.startswith("-") or verb in verbs
        case ["python", "-m", module, *_] if module.split(".")[0] in ("benchmarks", "tools", "streamlearn"):
            path = ROOT / module.replace(".", "/")
            return path.with_suffix(".py").exists() or (path / "__main__.py").exists()
        case _:
            return True


def test_the_project_speaks_of_itself_alone() -> None:
    wrong = []
    for file in _tracked(".py", ".rs", ".md", ".toml", ".yml", ".xml", ".sh", ".lock", "Makefile", ".avsc"):
        if file.name == "Cargo.lock":
            continue  # cargo writes its registry's name there itself
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if REGISTRY.search(line) or any(place in line for place in PLACES):
                wrong.append(f"{_name(file)}:{number}: {line.strip()[:100]}")
    assert not wrong, "\n".join(wrong)


def test_no_property_fails_by_the_clock() -> None:
    assert hypothesis_settings().deadline is None
    calls = re.compile(r"settings\([^)]*\bdeadline=(?!None)")
    wrong = [
        _name(file) for file in _tracked(".py") if _name(file).startswith("tests/") and calls.search(file.read_text())
    ]
    assert not wrong, f"a busy machine fails them: {wrong}"
