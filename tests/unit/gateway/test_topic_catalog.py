"""The topics that clients see, while topics come and go."""

from __future__ import annotations

from pathlib import Path

from share_spark.gateway.topic_catalog import TopicCatalog
from tests.support.share_consumers import TOPIC, Place


def test_the_id_of_a_topic_that_was_deleted_is_no_topic_any_more(tmp_path: Path) -> None:
    place = Place.below(tmp_path)
    catalog = TopicCatalog(place.log)
    former = catalog.all()[TOPIC].topic_id
    assert catalog.by_id([former]) == {former: TOPIC}
    place.log.delete_topic(TOPIC)
    assert catalog.of([TOPIC]) == {}
    assert catalog.by_id([former]) == {}


def test_a_topic_that_was_created_again_has_one_id(tmp_path: Path) -> None:
    place = Place.below(tmp_path)
    catalog = TopicCatalog(place.log)
    former = catalog.all()[TOPIC].topic_id
    place.log.delete_topic(TOPIC)
    place.log.create_topic(TOPIC, 2)
    present = catalog.of([TOPIC])[TOPIC].topic_id
    assert catalog.by_id([former, present]) == {present: TOPIC}
