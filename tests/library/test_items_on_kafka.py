"""Items on a real Kafka: written by a Producer, compacted, and followed from the positions of a version."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from streamlearn.events import Producer
from streamlearn.testing import wait_until
from streamlearn.topics import open_topic
from streamlearn.trainer.intake.item_feed import ItemFeed
from tests.library.place import T_MS, features, library_app, library_folder, made_topic
from tools.services import Kafka


def test_items_are_followed_from_a_broker(kafka: Kafka, topic_name: str, tmp_path: Path) -> None:
    app = library_app("str", name=f"items_{topic_name[-12:]}")
    folder = library_folder(app, tmp_path, topics={"root": f"kafka://{kafka.address}"})
    for name in ("impressions", "actions", "items"):
        made_topic(folder, name).close()
    with open_topic(folder.topic_url("items")) as topic:
        assert (topic.settings().compacted, topic.settings().retention_ms) == (True, -1)
    with Producer(folder) as producer:
        for item in range(300):
            producer.item(f"item {item}", T_MS + item, features(item))
        producer.remove_item("item 7", T_MS + 1_000)
        producer.flush()
        with closing(ItemFeed.open(folder)) as feed:
            feed.restore(None)
            feed.catch_up()
            assert len(feed.library) == 299
            assert sum(entry.offset for entry in feed.positions) == 301
            producer.item("new", T_MS + 2_000, features(1))
            producer.flush()

            def has_come() -> bool:
                feed.poll()
                return len(feed.library) == 300

            wait_until(has_come, "the new item comes")
            assert "new" in feed.library.view().ids_of().listed()
