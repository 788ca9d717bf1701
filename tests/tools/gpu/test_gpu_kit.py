"""The GPU kit runs without TensorFlow, finds what differs, and counts what a device would launch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.errors import ServiceError
from tests.availability import lacks
from tools.gpu.__main__ import ENVIRONMENT
from tools.gpu.children import children
from tools.gpu.export import _check
from tools.gpu.hlo_module import launches
from tools.gpu.kit import Graph, Kit, difference
from tools.gpu.report import Report
from tools.services.cache import Cache

_ROOT = Path(__file__).parents[3]
_WAIT_S = 600
# Everything that a GPU machine may lack: importing one of them fails.
_BLOCKED = ("tensorflow", "keras", "msgspec", "pyarrow", "fastavro", "apache_beam")
_PROVE = f"""
import runpy, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {_BLOCKED!r}:
            raise ModuleNotFoundError(f"blocked: {{name}}")
sys.meta_path.insert(0, Blocked())
sys.argv = ["prove.py", *sys.argv[1:]]
sys.path.insert(0, ".")
runpy.run_path("prove.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """An environment with JAX and without TensorFlow."""
    try:
        return ENVIRONMENT.build(Cache())
    except ServiceError as error:
        lacks(f"the environment cannot be built: {error}")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive as it is on another machine."""
    place = tmp_path_factory.mktemp("kit")
    command = [sys.executable, "-m", "tools.gpu.export", "--out", str(place / "kit.tar"), "--quick"]
    subprocess.run(command, cwd=_ROOT, check=True, timeout=_WAIT_S)
    with tarfile.open(place / "kit.tar") as archive:
        archive.extractall(place / "there", filter="data")
    return place / "there"


def prove(python: Path, folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Run prove.py, and return its exit status and its last line."""
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    command = [str(python), "-c", _PROVE, "--cpu", "--quick", *words]
    done = subprocess.run(command, cwd=folder, env=bare, stdout=subprocess.PIPE, text=True, timeout=_WAIT_S)
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_a_kit_proves_itself_where_only_jax_is(python: Path, unpacked: Path) -> None:
    status, answer = prove(python, unpacked)
    assert (status, answer["failures"]) == (0, [])
    figures = answer["figures"]
    assert 0 < figures["golden_difference_max"] < 1e-4
    assert figures["merged_16_launches_per_request"] < figures["merged_1_launches_per_request"]
    assert figures["launches_by_fusion"] > 1
    for name in ("compile_warm_s", "lanes_2_per_s", "step_deepfm_1024_us_per_sample", "end_to_end_samples_per_s"):
        assert figures[name] > 0, name
    assert set(answer["not measured"]) == {"copy_in_pinned_gb_per_s"}
    assert "step_deepfm_1024 on 2 shards" in (unpacked / "gpu-proof" / "prove.log").read_text()


def test_a_graph_that_differs_from_its_goldens_fails_and_a_missing_module_is_named(
    python: Path, unpacked: Path, tmp_path: Path
) -> None:
    shutil.copytree(unpacked, tmp_path, dirs_exist_ok=True)
    kit = Kit.read(tmp_path / "kit")
    kit.graphs = [graph for graph in kit.graphs if graph.name in ("user_16", "score_512")]
    kit.write()
    with np.load(kit.folder / "user_16.npz") as loaded:
        arrays = dict(loaded)
    arrays["out_0"][0, 0] += 1e-3 * np.abs(arrays["out_0"]).max()
    np.savez(kit.folder / "user_16.npz", **arrays)
    for module in (tmp_path / "streamlearn").glob("*.so"):
        module.unlink()
    status, answer = prove(python, tmp_path, "--only", "score", "--only", "shards")
    assert status == 1
    assert len(answer["failures"]) == 1
    assert answer["failures"][0].startswith("user_16 differs from its goldens by 0.001")
    assert "no compiled module" in answer["not measured"]["end_to_end_samples_per_s"]


def test_graphs_have_nothing_of_one_platform_and_all_their_products_get_the_precision_of_the_proof(
    unpacked: Path,
) -> None:
    for file in (unpacked / "kit").glob("*.stablehlo"):
        text = file.read_text()
        products = len(re.findall(r"stablehlo\.dot(?:_general)? ", text))
        assert products == text.count("precision = [DEFAULT, DEFAULT]") > 0, file.name
        assert "custom_call" not in text, file.name


def test_a_difference_is_a_share_of_the_largest_number() -> None:
    want = np.array([[0.0, 2e-5], [1e-5, 0.0]], np.float32)
    assert difference(want, want) == 0
    assert difference(want, want + np.float32(1e-6)) == pytest.approx(0.05, rel=1e-3)
    assert difference(want, want[:1]) == float("inf")
    assert difference(want, np.full_like(want, np.nan)) == float("inf")
    assert difference(np.zeros(2), np.array([0.0, 0.5])) == 0.5


def test_a_kit_keeps_rows_of_large_arrays_and_repeats_them(tmp_path: Path) -> None:
    kit = Kit(tmp_path, about={"of": "a test"})
    inputs, outputs = [np.arange(6.0).reshape(3, 2), np.arange(9)], [np.arange(2_000.0).reshape(1_000, 2), np.arange(7)]
    graph = Graph("one", "step", "m", 9, "", [[9, 2], [9]], [], 1, 1)
    kit.add(graph, (b"hlo", b"stable"), inputs, outputs)
    kit.write()
    again = Kit.read(tmp_path)
    assert (again.graphs, again.about, again.lowered(graph)) == ([graph], {"of": "a test"}, (b"hlo", "stable"))
    rows, index = again.inputs(graph)
    assert rows.shape == (9, 2)
    assert (rows[3:6] == inputs[0]).all()
    assert (index == inputs[1]).all()
    assert again.difference(graph, outputs) == 0
    (tmp_path / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(ValueError, match="has format 99"):
        Kit.read(tmp_path)


def test_a_report_goes_on_after_a_failure_and_ends_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(tmp_path)
    report.golden("good", 1e-5)
    with report.part("machine"):
        (tmp_path / "none").read_text()
    report.golden("bad", float("nan"))
    report.figures["launches_by_fusion"] = 2.0
    assert report.finish(has_bars=True) == 1
    *table, last = capsys.readouterr().out.splitlines()
    assert (
        json.loads(last)["failures"][0]
        == f"machine: FileNotFoundError: [Errno 2] No such file or directory: '{tmp_path}/none'"
    )
    assert "bad differs from its goldens by nan, more than 0.0001" in json.loads(last)["failures"][1]
    assert any(re.fullmatch(r"launches_by_fusion +2  >= 2\.5: MISSED", line) for line in table)
    assert "Traceback" in (tmp_path / "prove.log").read_text()
    good = Report(tmp_path)
    good.golden("good", 1e-5)
    assert good.finish(has_bars=False) == 0


def test_a_launch_is_a_fusion_a_call_of_a_library_or_what_is_called() -> None:
    module = """
%fused (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %a = f32[2]{0} add(%p, %p)
}

%buffer (q: f32[2]) -> (f32[2], s32[]) {
  %q = f32[2]{0} parameter(0)
  %g = f32[2]{0} fusion(%q), kind=kLoop, calls=%fused
  %s = (f32[2]{0}, s8[4]{0}) custom-call(%g), custom_call_target="__cublas$gemm"
  ROOT %t = (f32[2]{0}, s32[]) tuple(%g, %g)
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %x = f32[2]{0} parameter(0)
  %c = (f32[2]{0}, /*index=1*/s32[]) call(%x), to_apply=%buffer
  %cs = (f32[2]{0}, f32[2]{0}, u32[]) copy-start(%x)
  %cd = f32[2]{0} copy-done(%cs)
  ROOT %f = f32[2]{0} fusion(%cd), kind=kLoop, calls=%fused
}
"""
    assert launches(module) == 4


def test_an_export_whose_inputs_became_constants_is_refused() -> None:
    graph = Graph("one", "user", "m", 1, "", [[2, 3]], [], 1, 1)
    text = b"func.func @main(%arg0: tensor<2x3xf32> loc(1), %arg1: tensor<4xi64>) -> (tensor<f32>) {"
    arguments: list[Any] = [np.zeros((2, 3), np.float32), np.zeros(4, np.int64)]
    _check(graph, text, arguments)
    with pytest.raises(ServiceError, match="graph one takes 2x3xf32, 4xi64, but its arguments are 2x3xf32, 1xf32"):
        _check(graph, text, [arguments[0], np.zeros(1, np.float32)])


def test_children_begin_together_and_do_not_outlive_a_failure() -> None:
    with children([["tools.gpu.shard"]] * 0, 5):
        pass
    with (
        pytest.raises(RuntimeError, match=r"a process of json\.tool ended with status 2"),
        children([["json.tool", "--no-such-option"]], _WAIT_S),
    ):
        pass
