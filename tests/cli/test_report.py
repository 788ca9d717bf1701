"""`streamlearn report`: what it draws and says, for people and programs, and what it does where there is nothing."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest

from streamlearn.apps import load_app
from streamlearn.cli.report.marks import read_story
from streamlearn.cli.report.span import span_of
from streamlearn.testing import ManualClock
from streamlearn.times import time_text
from streamlearn.trainer.validation import ScoreLog, WindowScore, read_scores
from streamlearn.versions import (
    Committed,
    Cut,
    Head,
    History,
    PointerLog,
    Store,
    Verdict,
    VersionWriter,
    open_store,
    write_verdict,
)
from streamlearn.versions.pointer.moves import Pointer, promote, publish, raise_floor, release, rollback
from tests.cli.place import Verb, refused

BEGIN_MS, WALL_MS = 1_700_000_040_000, 1_700_000_100_000
MINUTE_MS = 60_000
MODEL = "small"


@pytest.fixture
def verb(ended: Verb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Verb:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("STREAMLEARN_STORE", str(tmp_path / "store"))
    return ended


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


class Life:
    """A model whose versions are written a minute apart, each learned up to 30 s before."""

    def __init__(self, store: Store) -> None:
        self.store, self.clock = store, ManualClock(wall_ms=WALL_MS)
        self.log = PointerLog(store, MODEL, clock=self.clock)
        self.last: Committed | None = None

    def cut(
        self, version: int, outcome: str = "passed", *, watermark: bool = True, metrics: dict[str, float] | None = None
    ) -> None:
        parent = None if self.last is None else self.last.ref
        head = Head(
            model=MODEL, run=1, version=version, kind="delta" if parent else "base", parent=parent,
            fingerprint="features", windows="windows", tables=(),
        )  # fmt: skip
        cut = Cut(watermark_ms=self.clock.wall_ms() - 30_000 if watermark else None, metrics=metrics or {})
        self.last = VersionWriter(self.store, head).finish(cut, [], clock=self.clock)
        write_verdict(self.store, self.last.folder, Verdict(version=self.last.ref, outcome=outcome))  # type: ignore[arg-type]
        self.clock.sleep(2.0)

    def move(self, decide: Callable[..., Pointer], *given: object, **named: object) -> None:
        known = History(self.store, MODEL).read()
        self.log.move(lambda now: decide(now, known, *given, **named), by="ann", reason="<why> & so")
        self.clock.sleep(58.0)


def life(store: Store) -> Life:
    """Two versions are served, one is rejected; a rollback, a canary, a release."""
    found = Life(store)
    for version in (1, 2):
        found.cut(version)
        found.move(publish, version, 1)
    found.cut(3, "rejected")
    found.move(rollback, 1)
    found.cut(4)
    found.move(partial(promote, accept=True), 4, share=0.25)
    found.move(raise_floor, 1)
    found.move(release)
    return found


def scores(minutes: int = 90) -> list[WindowScore]:
    found = []
    for label in ("click", "bought"):
        for width_s in (60, 3_600):
            for at in range(minutes * 60 // width_s):
                for text in ("", "home", "<b>search</b>", "_a$b$c"):
                    begin = BEGIN_MS + at * width_s * 1_000
                    auc = None if at == 3 else 0.6 + 0.002 * (at % 50)
                    numbers = (100 + at, 12.0, 100.0, auc, 0.4, 1.1, 0.5, 1.0)
                    segment = "page" if text else ""
                    end = begin + width_s * 1_000
                    one = WindowScore(label, begin, end, segment, text, *numbers, at % 7 != 0, standard_error=0.02)
                    found.append(one)
    return found


def few() -> list[WindowScore]:
    """Scores that are drawn soon."""
    return [one for one in scores(5) if not one.segment]


def write(app: Path, found: list[WindowScore] | None = None) -> None:
    with ScoreLog(app / ".streamlearn" / "validation") as log:
        log.append(scores() if found is None else found)


def test_without_scores_it_says_so_and_what_writes_them(small: Path, verb: Verb) -> None:
    refused(verb("report", small), 1, "has no scores", "help: figures come about ")


def test_before_the_first_window_closes_it_says_when(small: Path, verb: Verb, store: Store) -> None:
    first = Life(store)
    first.cut(1, watermark=False)
    first.clock.sleep(120)
    first.cut(2)
    first.clock.sleep(60)
    first.cut(3)
    wait_s = min(group.window_s for group in load_app(small).app.groups)
    began_ms = History(store, MODEL).read()[1].watermark_ms
    assert began_ms is not None
    closes = time_text((began_ms // 60_000 + 1) * 60_000 + wait_s * 1_000)
    refused(verb("report", small), 1, f"up to about {closes} UTC (a label is final after window_s = {wait_s})")
    assert not (small / ".streamlearn" / "report").exists()


def test_a_report_is_one_page_that_needs_nothing_beside_it(small: Path, store: Store, verb: Verb) -> None:
    write(small)
    life(store)
    ended = verb("report", small)
    assert ended.status == 0, ended
    out = small / ".streamlearn" / "report"
    assert f"the report is in {out / 'report.html'}" in ended.out
    assert {file.name for file in out.iterdir()} == {"report.html", "labels.png", "segment-page.png", "freshness.png"}
    page = (out / "report.html").read_text()
    assert "<b>" not in page
    assert "<script" not in page
    assert "&lt;why&gt; &amp; so" in page
    sources = re.findall(r'(?:src|href)="([^"]{0,40})', page)
    assert len(sources) == 3
    assert all(one.startswith("data:image/png;base64,") for one in sources)
    assert "http" not in re.sub(r'src="[^"]*"', "", page)
    _check_nesting(page)


def test_figures_are_drawn_and_differ_by_what_they_show(small: Path, store: Store, verb: Verb, tmp_path: Path) -> None:
    write(small)
    assert verb("report", small, "--out", tmp_path / "without").status == 0
    life(store)
    assert verb("report", small, "--out", tmp_path / "with").status == 0
    assert not (tmp_path / "without" / "freshness.png").exists()
    with_marks, without = (_pixels(tmp_path / name / "labels.png") for name in ("with", "without"))
    assert with_marks.shape == without.shape
    assert 0.0005 < float((with_marks != without).mean()) < 0.2  # the marks of five moves
    assert len(np.unique(with_marks)) > 50


def test_programs_are_given_the_newest_windows_marks_and_activations(small: Path, store: Store, verb: Verb) -> None:
    write(small)
    life(store)
    said = verb("report", small, "--json").json
    assert [(one["label"], one["window_s"]) for one in said["newest"]] == [
        ("bought", 60), ("bought", 3_600), ("click", 60), ("click", 3_600),
    ]  # fmt: skip
    assert said["newest"][2]["begin_ms"] == BEGIN_MS + 89 * MINUTE_MS
    assert [(one["what"], one["version"]) for one in said["marks"]] == [
        ("promote", 1), ("promote", 2), ("rejected", 3), ("rollback", 1), ("canary", 4), ("release", 4),
    ]  # fmt: skip
    assert [(one["version"], one["age_s"], one["behind_s"]) for one in said["activations"]] == [
        (1, 2.0, 32.0), (2, 2.0, 32.0), (1, 122.0, 152.0), (4, 118.0, 148.0),
    ]  # fmt: skip
    assert (said["versions"], said["moves"], said["moves_left"]) == (4, 6, 0)
    assert all(Path(file).is_file() for file in said["files"])


def test_hit_rates_of_a_span_are_the_means_of_its_versions_by_day(small: Path, store: Store, verb: Verb) -> None:
    write(small, few())
    title = "Hit rates of retrieval, before each positive was learned, and of popularity"
    assert title not in verb("report", small).out
    assert "hit_rates" not in verb("report", small, "--json").json
    found = Life(store)
    found.cut(1)
    for version, (hit, popular, positives, items) in enumerate(
        [(0.1, None, 100.0, 50.0), (0.5, 0.25, 300.0, 70.0), (0.5, 0.75, 100.0, 60.0)], 2
    ):
        of_popularity = {} if popular is None else {"retrieval_popular_100": popular}
        metrics = {"retrieval_hit_100": hit, "retrieval_positives": positives, "library_items": items} | of_popularity
        found.cut(version, metrics=metrics)
        found.clock.sleep(86_400.0 if version == 3 else 60.0)
    expected = [
        {"day": "2023-11-14", "positives": 400, "items": 70, "top 100": 0.4, "popular 100": 0.25},
        {"day": "2023-11-15", "positives": 100, "items": 60, "top 100": 0.5, "popular 100": 0.75},
    ]
    assert verb("report", small, "--json").json["hit_rates"] == expected
    printed = verb("report", small).out
    assert f"{title}:" in printed
    assert ["2023-11-14", "400", "70", "0.4", "0.25"] in [line.split() for line in printed.splitlines()]
    assert title in (small / ".streamlearn" / "report" / "report.html").read_text()
    assert verb("report", small, "--json", "--to", "2023-11-15").json["hit_rates"] == expected[:1]
    listed = verb("versions", "--app", small).out
    assert "top 100" in listed
    assert "0.1000" in listed
    assert [one["retrieval_hit_100"] for one in verb("versions", "--app", small, "--json").json["versions"]] == [
        None, 0.1, 0.5, 0.5,
    ]  # fmt: skip


def test_a_span_has_one_figure_a_label_and_text_from_the_windows_that_lie_in_it(small: Path, verb: Verb) -> None:
    write(small)
    begin, end = time_text(BEGIN_MS + 10 * MINUTE_MS), time_text(BEGIN_MS + 30 * MINUTE_MS)
    said = verb("report", small, "--json", "--from", begin, "--to", end).json
    assert said["span_window_s"] == 60
    places = [(one["label"], one["text"]) for one in said["span"]]
    assert places[:3] == [("bought", ""), ("click", ""), ("bought", "<b>search</b>")]
    total = said["span"][0]
    assert (total["windows"], total["rows"]) == (20, sum(range(110, 130)))
    assert total["auc"] == pytest.approx(0.6 + 0.002 * 19.5)
    assert 0.61 < total["auc_low"] < total["auc"] < total["auc_high"] < 0.66
    assert said["newest"][0]["end_ms"] == BEGIN_MS + 30 * MINUTE_MS
    printed = verb("report", small, "--from", begin, "--to", end).out
    assert f"All windows of 1 min from {begin} to {end} UTC:" in printed
    refused(
        verb("report", small, "--to", begin, "--from", end),
        1,
        "no window lies between --from and --to",
        "help: windows",
    )


def test_answers_that_equal_the_first_predictions_have_their_figures(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    found = []
    for at in range(9):
        rows, positives = int(rng.integers(5, 400)), float(rng.uniform(1, 50))
        auc, loss, mae = rng.uniform(0.1, 0.9, 3).tolist()
        place = BEGIN_MS + at * MINUTE_MS, BEGIN_MS + (at + 1) * MINUTE_MS, "", ""
        sums = rows, positives, positives + float(rng.uniform(1, 900))
        for label, figures in (("click", (auc, loss, None)), ("stars", (None, None, mae))):
            own, loss_of, error = figures
            score = WindowScore(label, *place, *sums, own, loss_of, None, None, 1.0, True, error)
            found.append(
                msgspec.structs.replace(
                    score, served_rows=rows, served_auc=own, served_log_loss=loss_of, served_mae=error
                )
            )
    with ScoreLog(tmp_path) as log:
        log.append(found)
    click, stars = span_of(read_scores(tmp_path)).scores
    assert (click.served_auc, click.served_log_loss) == pytest.approx((click.auc, click.log_loss))
    assert stars.served_auc is None
    assert stars.served_mae == pytest.approx(stars.mae)


def test_figures_of_a_span_are_those_of_all_its_rows_at_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    found, chances, outcomes, errors = [], [], [], []
    for at in range(12):
        rows = int(rng.integers(200, 400))
        chance, actual = rng.uniform(0.05, 0.6, rows), rng.normal(3.0, 1.0, rows)
        is_done, predicted = rng.random(rows) < chance, actual + rng.normal(0.0, 0.1 * at, rows)
        loss = -np.where(is_done, np.log(chance), np.log1p(-chance)).mean()
        place = BEGIN_MS + at * MINUTE_MS, BEGIN_MS + (at + 1) * MINUTE_MS, "", ""
        share = is_done.mean()
        base = -share * np.log(share) - (1 - share) * np.log1p(-share)
        ends = 1.0, True
        counts = rows, float(is_done.sum()), float(rows)
        known = float(loss), float(chance.sum() / is_done.sum()), float(base)
        found.append(WindowScore("click", *place, *counts, 0.7, *known, *ends))
        wrong = np.abs(predicted - actual)
        mae, rmse, ratio = float(wrong.mean()), float((wrong**2).mean() ** 0.5), float(predicted.sum() / actual.sum())
        totals, error = (rows, float(actual.sum()), float(rows)), float(wrong.std() / rows**0.5)
        found.append(WindowScore("stars", *place, *totals, None, None, ratio, None, *ends, mae, rmse, error))
        chances.append(chance)
        outcomes.append(is_done)
        errors.append(wrong)
    with ScoreLog(tmp_path) as log:
        log.append(found)
    click, stars = span_of(read_scores(tmp_path)).scores
    chance, is_done, wrong = (np.concatenate(parts) for parts in (chances, outcomes, errors))
    loss, share = -np.where(is_done, np.log(chance), np.log1p(-chance)).mean(), is_done.mean()
    base = -share * np.log(share) - (1 - share) * np.log1p(-share)
    assert click.mae is None
    assert click.auc == pytest.approx(0.7)
    assert click.log_loss == pytest.approx(loss)
    assert click.normalised_entropy == pytest.approx(loss / base)
    assert click.calibration == pytest.approx(chance.sum() / is_done.sum())
    assert (stars.auc, stars.log_loss, stars.normalised_entropy) == (None, None, None)
    assert stars.mae == pytest.approx(wrong.mean())
    assert stars.rmse == pytest.approx((wrong**2).mean() ** 0.5)
    within = np.concatenate([one - one.mean() for one in errors])
    half = 1.96 * within.std() / len(within) ** 0.5
    assert (stars.mae_low, stars.mae_high) == pytest.approx((wrong.mean() - half, wrong.mean() + half))
    assert (click.auc_low, click.auc_high) == (None, None)  # the errors of its windows are not known
    # A window without positives has no calibration in the log.
    place = BEGIN_MS + 12 * MINUTE_MS, BEGIN_MS + 13 * MINUTE_MS, "", ""
    nothing = WindowScore("click", *place, 9, 0.0, 9.0, None, 0.1, None, 0.0, *ends)
    with ScoreLog(tmp_path) as log:
        log.append([nothing])
    lacking, _ = span_of(read_scores(tmp_path)).scores
    assert (lacking.windows, lacking.calibration) == (13, None)
    assert lacking.log_loss != click.log_loss


def test_a_span_is_of_hours_only_where_two_of_them_lie_in_it(small: Path, verb: Verb) -> None:
    write(small, scores(180))
    for begin, end, width_s in ((0, 180, 3_600), (30, 170, 60), (50, 180, 3_600)):
        words = ("--from", time_text(BEGIN_MS + begin * MINUTE_MS), "--to", time_text(BEGIN_MS + end * MINUTE_MS))
        said = verb("report", small, "--json", *words).json
        assert said["span_window_s"] == width_s
        assert said["span"][0]["windows"] == {0: 3, 30: 140, 50: 2}[begin]


def test_a_move_is_at_the_event_time_of_the_newest_version_before_it(store: Store) -> None:
    life(store)
    story = read_story(store, MODEL, moves_max=100, is_live=False)
    at = {one.what: one.event_ms for one in story.marks}
    assert at["rollback"] == WALL_MS + 2 * MINUTE_MS - 30_000  # of version 3
    assert at["release"] == WALL_MS + 3 * MINUTE_MS - 30_000  # of version 4
    assert all(one.behind_s is None for one in story.activations)
    assert sum(mark.event_ms is not None for mark in story.marks if mark.what in ("promote", "release")) == 3


def test_marks_without_an_event_time_are_counted_and_in_the_table(small: Path, store: Store, verb: Verb) -> None:
    write(small, few())
    found = Life(store)
    for version in (1, 2):
        found.cut(version, watermark=False)
        found.move(publish, version, 1)
    found.move(rollback, 1)
    ended = verb("report", small)
    assert "1 mark without a known event time: only in the table." in ended.out
    assert "rollback" in (small / ".streamlearn" / "report" / "report.html").read_text()


def test_moves_that_are_not_looked_at_are_counted(small: Path, store: Store, verb: Verb) -> None:
    write(small, few())
    life(store)
    ended = verb("report", small, "--moves", 2)
    assert "4 moves of the pointer, older or damaged, are not shown." in ended.out
    story = read_story(store, MODEL, moves_max=2, is_live=True)
    assert [one.what for one in story.marks] == ["rejected", "release"]  # what the oldest of them did is not known
    assert [one.version for one in story.activations][-1] == 4


def test_parquet_has_every_score(small: Path, verb: Verb, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    write(small, few())
    write(small, few())  # a window scored twice is there twice
    ended = verb("report", small, "--parquet", tmp_path / "scores.parquet")
    assert ended.status == 0, ended
    assert f"{2 * len(few())} scores in {tmp_path / 'scores.parquet'}" in ended.out
    assert not (small / ".streamlearn" / "report").exists()
    table = pq.read_table(tmp_path / "scores.parquet")
    found = read_scores(small / ".streamlearn" / "validation")
    assert table.num_rows == len(found) == 2 * len(few())
    both = verb("report", small, "--parquet", tmp_path / "b.parquet", "--out", tmp_path / "out", "--json").json
    assert [Path(file).name for file in both["files"]] == ["report.html", "labels.png", "b.parquet"]
    assert both["scores"] == len(few())


def test_a_setting_says_where_scores_are(small: Path, verb: Verb, tmp_path: Path) -> None:
    with ScoreLog(tmp_path / "elsewhere") as log:
        log.append(few())
    assert verb("report", small, "--set", f"validation.folder={tmp_path / 'elsewhere'}").status == 0


def test_one_window_of_one_label_is_a_report(small: Path, verb: Verb) -> None:
    write(small, scores(1)[:1])
    ended = verb("report", small)
    assert ended.status == 0, ended
    assert "1 score, 1 from incomplete windows; 0 versions, 0 moves of the pointer." in ended.out


def test_without_matplotlib_it_says_what_to_install(
    small: Path, verb: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(small, few())
    for name in [one for one in sys.modules if one.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused(verb("report", small), 2, "a report needs matplotlib", "help: pip install 'streamlearn[report]'")
    assert verb("report", small, "--parquet", tmp_path / "scores.parquet").status == 0


def _pixels(file: Path) -> np.ndarray:
    from PIL import Image

    with Image.open(io.BytesIO(file.read_bytes())) as image:
        return np.asarray(image.convert("RGB"))


class _Nesting(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _check_nesting(page: str) -> None:
    parser = _Nesting()
    parser.feed(page)
    assert parser.open == []
