"""Which task owns a share-partition."""

from __future__ import annotations

from collections import Counter

import pytest

from share_spark.model.ids import SharePartitionKey
from share_spark.spark.frames import murmur3
from share_spark.state.buckets import bucket_numbers, bucket_of

pytestmark = pytest.mark.usefixtures("window_form")


@pytest.mark.parametrize("count", [1, 2, 3, 8, 64])
def test_every_task_gets_exactly_one_bucket(count: int) -> None:
    numbers = bucket_numbers(count)
    assert sorted(murmur3(number) % count for number in numbers) == list(range(count))


def test_a_share_partition_stays_in_its_bucket_and_groups_do_not_matter() -> None:
    numbers = bucket_numbers(4)
    keys = [SharePartitionKey("g", "tid", partition) for partition in range(200)]
    assert [bucket_of(key, numbers) for key in keys] == [bucket_of(key._replace(group_id="h"), numbers) for key in keys]
    sizes = Counter(bucket_of(key, numbers) for key in keys)
    assert set(sizes) == set(numbers)
    assert min(sizes.values()) > 30


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_as_many_share_partitions_of_a_topic_as_buckets_are_one_in_each(count: int) -> None:
    """Or some cores would do nothing, and one the work of several."""
    numbers = bucket_numbers(count)
    for first in range(5):
        keys = [SharePartitionKey("g", "AAAAAAAAAAAAAAAAAAAAAQ", first + partition) for partition in range(count)]
        assert {bucket_of(key, numbers) for key in keys} == set(numbers)
