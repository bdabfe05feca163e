"""The place of a table: a directory or a catalog name, one value for both.

Users write ``/data/state``, ``s3a://bucket/state`` or ``main.queues`` and mean the same kind of thing; this is the
only place that knows the difference. Nothing about what is *in* a table may enter, and no configuration of the
session.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.direct_metadata import create_table
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.delta.table_schema import schema_text_of
from share_spark.model.errors import ConfigError
from share_spark.spark.delta_log import properties_of
from share_spark.spark.errors import JVM_ERRORS, first_line
from share_spark.spark.hadoop_files import files_at
from share_spark.spark.on_demand import AnySpark, given_session, session_of
from share_spark.spark.schemas import columns_in

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_PART = re.compile(r"`(?:[^`]|``)+`|[^\s`./\\:]+")
_PATH_IN_SQL = re.compile(r"delta\.`((?:[^`]|``)+)`", re.IGNORECASE)
_MAX_PARTS = 3
_LOG = "_delta_log"
_STAGED = "_staged_commits"
"""A directory that Delta makes in a log before its first commit."""

_DEFAULT_PROPERTIES = "spark.databricks.delta.properties.defaults."

_MAKE_ATTEMPTS = 5
_MAKING_S = 10.0
"""The time within which a program that creates a table has committed it, or has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A directory (``path``) or a name (``parts``: catalog, schema, table).

    Also names a place for several tables: a directory or a schema; ``table`` goes one step down.
    """

    path: str | None = None
    parts: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Location:
        """Parse the text of a user. With a slash, or as ``delta.`…```: a path (a relative one is made absolute, as
        Delta requires); otherwise a name of one to three parts. Raises ConfigError.
        """
        text = text.strip()
        if in_sql := _PATH_IN_SQL.fullmatch(text):
            text = in_sql[1].replace("``", "`")
            return cls(path=_absolute(text))
        if "/" in text or "\\" in text or text in (".", ".."):
            return cls(path=_absolute(text))
        return cls(parts=_name_parts(text))

    def __str__(self) -> str:
        return self.path if self.path is not None else ".".join(self.parts)

    def table(self, name: str) -> Location:
        """Return the table ``name`` in this directory or schema. Raises ConfigError (already a table)."""
        if self.path is not None:
            return Location(path=f"{self.path.rstrip('/')}/{name}")
        if len(self.parts) >= _MAX_PARTS:
            raise ConfigError(f"{self} names a table; here a directory or a schema is needed")
        return Location(parts=(*self.parts, name))

    def sql_name(self) -> str:
        """Return the name for SQL text, quoted: ``delta.`/path``` or ```catalog`.`schema`.`table```."""
        if self.path is not None:
            return f"delta.{_quoted(self.path)}"
        return ".".join(_quoted(part) for part in self.parts)

    def exists(self, spark: AnySpark) -> bool:
        """Return whether there is a Delta table here; False for a directory of other things, or another format."""
        if self.path is not None:
            return CommitFiles.at(spark, self.path).is_table()
        return self._is_in_catalog(spark) and self._provider(spark) == "delta"

    def is_free(self, spark: AnySpark) -> bool:
        """Return whether a table can be created here: no such name, or a directory that is empty, missing, or holds
        only the beginning of a table that was never committed."""
        if self.path is None:
            return not self._is_in_catalog(spark)
        return not _names_in(spark, self.path) or self._is_begun(spark)

    def create(
        self,
        spark: AnySpark,
        columns: str,
        *,
        partitioned_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create a Delta table with these columns (DDL text) unless it exists.

        Its schema must exist already. Without Spark where possible; else see ``make``.
        """
        if self.path is not None and self._create_directly(
            spark, _schema_text(spark, columns), partitioned_by, properties
        ):
            return
        session = session_of(spark, f"{self} has to be created")
        partitioning = f" PARTITIONED BY ({', '.join(partitioned_by)})" if partitioned_by else ""
        table_properties = properties_clause(properties or {})
        statement = (
            f"CREATE TABLE IF NOT EXISTS {self.sql_name()} ({columns}) USING DELTA"
            f"{partitioning}{f' TBLPROPERTIES {table_properties}' if table_properties else ''}"
        )
        self.make(session, lambda: session.sql(statement))

    def create_with(self, spark: SparkSession, columns: StructType) -> None:
        """Create a Delta table with these columns and nothing else, unless it exists. See ``create``."""
        if self.path is not None and self._create_directly(spark, columns.json()):
            return
        from delta.tables import DeltaTable

        builder = DeltaTable.createIfNotExists(spark).addColumns(columns)
        builder = builder.location(self.path) if self.path is not None else builder.tableName(self.sql_name())
        self.make(spark, builder.execute)

    def _create_directly(
        self,
        spark: AnySpark,
        schema_text: str,
        partitioned_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> bool:
        """Create the table without Spark; return whether it is there now."""
        assert self.path is not None
        session = given_session(spark)
        settings: Any = {} if session is None else session.conf.getAll
        if any(name.startswith(_DEFAULT_PROPERTIES) for name in settings):
            return False  # the user sets properties for new tables; only Delta knows their effect
        files = CommitFiles.at(spark, self.path)
        if not files.is_table():
            self._clear_beginning(spark)
        try:
            create_table(files, schema_text, partitioned_by=partitioned_by, properties=properties)
        except NotImplementedError:
            return False
        return True

    def make(self, spark: SparkSession, create: Callable[[], object]) -> None:
        """Call ``create``, which makes a table here unless there is one. Another program may be creating it at this
        moment, or has died while it did: Delta takes its remains for something foreign, or for an existing table.
        Raises the last error of ``create`` if there is no table then."""
        fault: Exception | None = None
        for _ in range(_MAKE_ATTEMPTS):
            self._clear_beginning(spark)
            try:
                create()
            except JVM_ERRORS as error:
                fault = error
            if not self.is_free(spark) and self.exists(spark):
                return
        if fault is not None:
            raise fault

    def _clear_beginning(self, spark: AnySpark) -> None:
        """Delete the beginning of a table if it stays for ``_MAKING_S``: a younger one belongs to a running program."""
        deadline = time.monotonic() + _MAKING_S
        while self._is_begun(spark):
            if time.monotonic() >= deadline:
                log = f"{self.path}/{_LOG}"
                files_at(spark, log).delete(log, recursive=True)
                return
            time.sleep(0.1)

    def _is_begun(self, spark: AnySpark) -> bool:
        """Return whether there is a log without a commit, and nothing else."""
        if self.path is None or _names_in(spark, self.path) != [_LOG]:
            return False
        return all(name.startswith(".") or name == _STAGED for name in _names_in(spark, f"{self.path}/{_LOG}"))

    def load(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        """Return the table's rows at the latest version, or at ``version``. Lazy."""
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(self.path) if self.path is not None else reader.table(self.sql_name())

    def append(self, frame: DataFrame, options: Mapping[str, str] | None = None) -> None:
        """Append ``frame`` in one commit; ``options`` are Delta's (``userMetadata`` …)."""
        writer = frame.write.format("delta").mode("append").options(**dict(options or {}))
        if self.path is not None:
            writer.save(self.path)
        else:
            writer.saveAsTable(self.sql_name())

    def delta_table(self, spark: SparkSession) -> DeltaTable:
        """Return Delta's own object, for detail, history, delete, vacuum."""
        from delta.tables import DeltaTable

        if self.path is not None:
            return DeltaTable.forPath(spark, self.path)
        return DeltaTable.forName(spark, self.sql_name())

    def directory(self, spark: AnySpark) -> str:
        """Return the directory of the data and ``_delta_log``; a name asks the catalog (about 0.1 s)."""
        if self.path is not None:
            return self.path
        return str(self.delta_table(self._session_for_name(spark)).detail().select("location").collect()[0][0])

    def properties(self, spark: AnySpark) -> dict[str, str]:
        """Return the table's properties as Delta has them; metadata only, no job."""
        if self.path is not None:
            log = self.log(spark)
            if log is not None:
                return dict(log.properties)
            return properties_of(session_of(spark, f"{self} has a log that only Spark reads"), self.path)
        rows = self._session_for_name(spark).sql(f"SHOW TBLPROPERTIES {self.sql_name()}").collect()
        return {row.key: row.value for row in rows}

    def log(self, spark: AnySpark) -> TableLog | None:
        """Return the table's log, read from its files; None where only Spark can read it."""
        try:
            return TableLog.open(CommitFiles.at(spark, self.directory(spark)))
        except UnknownTableError:
            return None

    def _session_for_name(self, spark: AnySpark) -> SparkSession:
        return session_of(spark, f"{self} is a name of the catalog")

    def _is_in_catalog(self, spark: AnySpark) -> bool:
        """Return whether the catalog has the name. Raises ConfigError: no catalog of the session can be asked."""
        session = self._session_for_name(spark)
        try:
            return bool(session.catalog.tableExists(self.sql_name()))
        except JVM_ERRORS as error:
            raise ConfigError(
                f"{self} cannot be looked up in the catalogs of this Spark session: {first_line(error)}"
            ) from error

    def _provider(self, spark: AnySpark) -> str:
        rows = self._session_for_name(spark).sql(f"DESCRIBE EXTENDED {self.sql_name()}").where("col_name = 'Provider'")
        found = rows.select("data_type").collect()
        return str(found[0][0]).lower() if found else ""


def _schema_text(spark: AnySpark, columns: str) -> str:
    try:
        return schema_text_of(columns_in(columns))
    except ValueError as reason:
        session_of(spark, f"columns are read by Spark ({reason})")
        from pyspark.sql.types import StructType

        return StructType.fromDDL(columns).json()


def properties_clause(properties: Mapping[str, str]) -> str:
    """Return ``('key' = 'value', …)`` for TBLPROPERTIES, quoted; empty text for no properties."""
    if not properties:
        return ""
    pairs = (f"{_literal(key)} = {_literal(value)}" for key, value in properties.items())
    return f"({', '.join(pairs)})"


def _names_in(spark: AnySpark, directory: str) -> list[str]:
    """Return the names in a directory; empty if it is not there."""
    return files_at(spark, directory).names(directory)


def _absolute(text: str) -> str:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
        return text.rstrip("/") if not text.endswith(":/") else text
    return str(Path(text).expanduser().absolute())


def _name_parts(text: str) -> tuple[str, ...]:
    parts = _PART.findall(text)
    if not parts or len(parts) > _MAX_PARTS or ".".join(parts) != text:
        raise ConfigError(f"{text!r} is neither a path (with a slash) nor a name like schema.table")
    return tuple(part[1:-1].replace("``", "`") if part.startswith("`") else part for part in parts)


def _quoted(part: str) -> str:
    escaped = part.replace("`", "``")
    return f"`{escaped}`"


def sql_literal(value: int | str | None) -> str:
    """Return a constant for SQL text."""
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else _literal(value)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
