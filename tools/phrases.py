"""Phrases that are hard to read: finds them in help, settings, metrics, errors, log lines and docs.

`python -m tools.phrases` names each by file and line.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["BANNED", "banned_phrases"]

ROOT = Path(__file__).parent.parent
BANNED = {
    "begins with What, Who or Whoever": r"(?:^|[.:;!?]\s+|^[-*|]\s+)(?:What|Who|Whoever|Whatever|Whose)\b(?![^.?!]*\?)",
    "'is no'": r"\b(?:is|are|was|were) no (?!longer\b|more\b|such\b|one\b)",
    "'of which', 'of whom'": r"\bof (?:which|whom)\b",
    "'so many', 'so long', 'so much'": r"\bso (?:many|long|much|few)\b(?! (?:as|that)\b)",
    "'is to be'": r"\b(?:is|are|was|were) to be\b",
    "'anew'": r"\banew\b",
    "'is said', 'is told', 'is spoken'": r"\b(?:is|are|was|were|be|been) (?:said|told|spoken)\b",
    "'there is not yet'": r"\bthere (?:is|are) not yet\b",
    "'nobody' or 'whoever'": r"\b(?:nobody|whoever)\b",
    "a possessive without its noun": r"\b(?:is|are) (?:the |a )?\w+(?:'s|s')(?=[.,;:)]|$)",
    "'what there is'": r"\bwhat there is\b",
    "'that of', 'those of' at the end": r"\b(?:that|those) of (?:before|another|others)\b",
}
"""The patterns by name."""
_PATTERNS = {
    name: re.compile(pattern, re.IGNORECASE if "begins" not in name else 0) for name, pattern in BANNED.items()
}
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_RUST_TEXT = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def banned_phrases(root: Path = ROOT) -> list[str]:
    """Return every banned phrase of a checkout: file, line, pattern and text."""
    phrases = []
    for file, line, text in _texts(root):
        for name, pattern in _PATTERNS.items():
            phrases += [
                f"{file.relative_to(root)}:{line}: {name}: {_around(text, match)}" for match in pattern.finditer(text)
            ]
    return phrases


def _around(text: str, match: re.Match[str]) -> str:
    return " ".join(text[max(0, match.start() - 30) : match.end() + 30].split())


def _texts(root: Path) -> Iterator[tuple[Path, int, str]]:
    for file in sorted(
        {root / "README.md", root / "ARCHITECTURE.md", root / "CONTRIBUTING.md", *root.glob("docs/**/*.md")}
    ):
        yield from ((file, line, text) for line, text in _paragraphs(file))
    for file in sorted(root.glob("streamlearn/**/*.py")):
        yield from ((file, line, text) for line, text in _python_texts(file))
    for file in sorted(root.glob("native/*/src/**/*.rs")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if not line.lstrip().startswith("//"):
                yield from ((file, number, text) for text in _RUST_TEXT.findall(line) if " " in text)


def _paragraphs(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, list items and table cells of a page, without code, each with its first line number."""
    begin, lines, is_code = 0, list[str](), False
    for number, line in enumerate([*file.read_text().splitlines(), ""], 1):
        if _FENCE.match(line):
            is_code = not is_code
        if is_code or _FENCE.match(line) or not line.strip() or line.lstrip().startswith(("|", "-", "*", "#")):
            if lines:
                yield begin, " ".join(lines)
            begin, lines = number, []
            if not is_code and not _FENCE.match(line) and line.strip():
                lines = [line.strip().lstrip("-*# ")] if not line.lstrip().startswith("|") else []
                if line.lstrip().startswith("|"):
                    yield from ((number, cell.strip()) for cell in line.split("|") if " " in cell)
        else:
            begin = begin if lines else number
            lines.append(line.strip())


def _python_texts(file: Path) -> Iterator[tuple[int, str]]:
    """Yield texts that people read: all with a space. Docstrings count only as help of commands and settings."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    docs = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    is_shown = not {"cli", "settings"}.isdisjoint(file.parts)
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            hidden = inner if is_shown else inner | docs
            yield from () if id(node) in hidden else ((node.lineno, node.value),)


def main() -> None:
    """Print the phrases; exit with 1 if there are any."""
    phrases = banned_phrases()
    print("\n".join(phrases))
    print(f"{len(phrases)} phrases")
    sys.exit(bool(phrases))


if __name__ == "__main__":
    main()
