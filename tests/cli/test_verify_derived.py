"""`streamlearn verify --derived`: what it prints, and how it ends."""

from __future__ import annotations

from pathlib import Path

from streamlearn.versions import Chain
from streamlearn.versions.format.library_files import GONE
from tests.cli.place import Verb
from tests.serving.test_trained_retrieval import learned
from tests.trainer.runs import store_of
from tests.trainer.towers.test_derived_vectors import all_vectors, with_next


def test_the_verb_counts_vectors_and_ends_with_1_for_a_forged_one(ended: Verb, tmp_path: Path) -> None:
    trained = learned(tmp_path / "app", "two_tower")
    whole = all_vectors(Chain.find(store_of(trained), trained.app.name))
    done = ended("verify", "--app", trained.folder, "--store", store_of(trained).url, "--derived")
    assert done.status == 0, done.err
    assert f"version 4: {len(whole['key'])} vectors made once more" in done.out
    forged = {name: column[:1].copy() for name, column in whole.items() if name != GONE}
    forged["row"] = -forged["row"]
    chain = with_next(trained, tmp_path, forged, [], {})
    done = ended("verify", "--app", trained.folder, "--store", chain.store.url, "--derived", "--json")
    assert done.status == 1
    assert (done.json["derived"]["version"], done.json["derived"]["vectors"]) == (5, len(whole["key"]))
    assert [defect["path"] for defect in done.json["defects"]] == [chain.head.folder]
    assert "is not what its rows and weights make" in done.json["defects"][0]["said"]
    assert ended("verify", "--app", trained.folder, "--store", chain.store.url, "--derived", "--version", 4).status == 0
    assert ended("verify", "--app", trained.folder, "--store", chain.store.url).status == 0
    done = ended("verify", trained.app.name, "--store", chain.store.url, "--derived")
    assert done.status == 2
    assert "needs the folder of the application" in done.err
