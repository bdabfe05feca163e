"""Let share consumers of Kafka join a group whose engine runs in a Spark query.

    spark-submit --properties-file conf/spark-defaults.conf jobs/share_gateway.py \
        --group billing --topic orders --listen 0.0.0.0:9092 \
        --bootstrap-server broker:9092 --state /lake/queues --starting earliest

It is `share-spark run` with `--listen`. With `--handler` the handler is one member of the group among others.
`share-spark gateway` serves any group, and needs no Spark.
"""

import sys

from share_spark.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", "--listen", "127.0.0.1:9092", *sys.argv[1:]]))
