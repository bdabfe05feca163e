"""Compact a state location with spark-submit, by a schedule; `share-spark compact` is the same without it.

    spark-submit --properties-file conf/spark-defaults.conf jobs/compact_share_state.py \
        --state /lake/queues --dead-letter /lake/letters --dead-letter-retention 30d

Run it once an hour or once a day, beside running engines. `--dry-run` shows what it would do, `--help` lists options;
`--config conf/compact-share-state.toml` takes them from a file.
"""

import sys

from share_spark.cli import main

if __name__ == "__main__":
    sys.exit(main(["compact", *sys.argv[1:]]))
