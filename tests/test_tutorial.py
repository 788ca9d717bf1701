"""The tutorial: its files and its commands as they stand, in order, from an empty folder to a scored request."""

from __future__ import annotations

import re
from pathlib import Path

from tests.pages import ROOT, walk

_S_MAX = 1_800  # it only ends what hangs
_AUC_LEAST = 0.68  # whoever knows nothing has 0.5


def test_a_newcomer_gets_from_a_log_to_a_trained_model(tmp_path: Path) -> None:
    said = walk(tmp_path, _script((ROOT / "docs" / "tutorial.md").read_text()), s_max=_S_MAX)
    trained = re.findall(r"^trained +\n((?:[\w.]+ +[\d.,]+ *\n)+)", said, flags=re.M)
    first, own, recent = [dict(re.findall(r"^(\w+) +([\d.,]+) *$", one, flags=re.M)) for one in trained]
    assert (first["version"], first["rows"]) == ("2", "20,000"), said
    assert (own["version"], own["rows"]) == ("2", "20,000"), said
    assert (recent["version"], recent["rows"]) == ("2", "20,000"), said
    assert min(float(one["auc"]) for one in (first, own, recent)) > _AUC_LEAST, said
    assert re.search(r"^clicked +\[\d+(, \d+){9}\] *$", said, flags=re.M), said

    listed = re.findall(r"^ +([12]) .* (base|delta) .* (unscored|active) ", said, flags=re.M)
    assert listed == [("1", "base", "unscored"), ("2", "delta", "active")] * 2, said
    [(auc, is_complete)] = re.findall(r"^click +1 h +\S+ \S+ +\S+ +(\S+) .* (yes|no) *$", said, flags=re.M)
    assert (float(auc) > _AUC_LEAST, is_complete) == (True, "yes"), said

    ranked = re.findall(r"^product +\d+ of (\w+) +(\d\.\d+)$", said, flags=re.M)
    assert len(ranked) == 5, said
    assert [brand for brand, _ in ranked].count("globex") >= 4, said
    assert re.search(r"^[1-9]\d* golden rows, at most \d\.\de[-+]\d+ apart$", said, flags=re.M), said


def _script(page: str) -> str:
    """The page as one program of the shell: a file where a block names one, else the commands."""
    lines = []
    for kind, block in re.findall(r"^```(python|toml|sh)\n(.*?)^```", page, flags=re.M | re.S):
        if kind == "sh":
            lines.append(block)
        else:
            lines.append(f"cat > {block.splitlines()[0].removeprefix('# ')} <<'END-OF-BLOCK'\n{block}END-OF-BLOCK\n")
    return "".join(lines)
