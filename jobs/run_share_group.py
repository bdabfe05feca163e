"""Run a share group with spark-submit; `share-spark run` is the same without it.

    spark-submit --properties-file conf/spark-defaults.conf jobs/run_share_group.py \
        --group billing --topic orders --handler my_project.billing:bill \
        --bootstrap-server broker:9092 --state /lake/queues --dead-letter orders-dead --starting earliest

`--help` lists all options; `--config conf/share-spark.toml` takes them, and the group's settings, from a file. SIGINT
or SIGTERM, to this process or to spark-submit's, stops after the current micro-batch (exit 0), a second one at once
(exit 130).
"""

import sys

from share_spark.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
