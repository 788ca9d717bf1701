"""Topics: logs of records at one URL, in memory, a folder or Kafka. Importing this does not import Kafka."""

from streamlearn.topics.records import Position, Records
from streamlearn.topics.settings import AccessSettings, TopicSettings, WriterSettings
from streamlearn.topics.topic import Reader, Topic
from streamlearn.topics.topic_factory import create_topic, delete_topic, open_topic
from streamlearn.topics.writer import Writer, partition_of

__all__ = [
    "AccessSettings",
    "Position",
    "Reader",
    "Records",
    "Topic",
    "TopicSettings",
    "Writer",
    "WriterSettings",
    "create_topic",
    "delete_topic",
    "open_topic",
    "partition_of",
]
