"""``python -m share_spark.cli``: the console script."""

import sys

from share_spark.cli import main

if __name__ == "__main__":
    sys.exit(main())
