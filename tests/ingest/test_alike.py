"""Samples are added to a topic of the same features and labels alone; windows may change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from streamlearn.errors import ConfigError
from streamlearn.ingest.output.fingerprint_check import require_alike
from streamlearn.samples import SampleCodec
from streamlearn.settings import Settings
from streamlearn.settings.events import SampleSettings
from streamlearn.testing import small_app, small_batch, small_folder
from streamlearn.topics import TopicSettings, create_topic

_APP = small_app()
_OF_BEFORE = (Path(__file__).parent.parent / "samples" / "of_before.bin").read_bytes()
_TODAYS = SampleCodec(_APP, SampleSettings()).encode(small_batch(_APP, 2, 5))


@pytest.mark.parametrize("message", [_TODAYS, _OF_BEFORE], ids=["today", "before"])
def test_samples_of_other_labels_are_not_added_to(tmp_path: Path, message: bytes) -> None:
    url = f"file://{tmp_path}/samples"
    with create_topic(url, TopicSettings()) as topic, topic.writer() as writer:
        writer.append(0, [message])
    settings = msgspec.convert({"topics": {"samples": url}}, Settings)
    renamed = replace(_APP, labels=(replace(_APP.labels[0], name="share"), _APP.labels[1]))
    for app in (replace(_APP, labels=_APP.labels[::-1]), renamed):
        with pytest.raises(ConfigError, match="has the labels click, bought; app 'small' expects") as refused:
            require_alike(small_folder(tmp_path, app, settings))
        assert "Change an application" in refused.value.help
    slower = replace(_APP, groups=(replace(_APP.groups[0], window_s=700), _APP.groups[1]))
    for app in (_APP, slower):
        require_alike(small_folder(tmp_path, app, settings))
