"""A real S3 protocol server in this process, and Hadoop's s3a to reach it: a store without a rename that is atomic and
without a create that only one of two can win.

The jars are a set of the tests' alone, fetched and kept as the engine's are (``share_spark.spark.jars``). The whole AWS
SDK is one jar of 560 MB; s3a loads six modules of it, 10 MB with what they need.
"""

from __future__ import annotations

import logging
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from moto.server import ThreadedMotoServer

from share_spark.spark import jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET = "lake"

AWS_SDK_VERSIONS = {"3.4": "2.24.5", "3.5": "2.35.4"}
"""By the release of Hadoop. 3.4.1 asks for 2.24.6, of which not every mirror of Maven Central has all modules."""

AWS_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")


def s3a_jar_paths() -> list[str]:
    """Hadoop's s3a of the release that pyspark ships. Raises JarsError."""
    hadoop = _hadoop_version()
    wanted = [("org.apache.hadoop", "hadoop-aws", hadoop)]
    sdk = AWS_SDK_VERSIONS[hadoop.rpartition(".")[0]]
    wanted += [("software.amazon.awssdk", module, sdk) for module in AWS_MODULES]
    excluded = jars._shipped() | {"bundle"}
    return [str(path) for path in jars._jars(f"s3a-{hadoop}-aws{sdk}", wanted, excluded)]


def _hadoop_version() -> str:
    (found,) = jars.pyspark_jars().glob("hadoop-client-api-*.jar")
    version = re.fullmatch(r"hadoop-client-api-(.+)\.jar", found.name)
    assert version is not None
    return version[1]


@contextmanager
def running_object_store(spark: SparkSession) -> Iterator[str]:
    """The URL of an empty bucket that ``spark`` can reach while the block runs. Raises JarsError."""
    _load(spark, s3a_jar_paths())
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request otherwise
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")).close()
        with _settings(spark, _s3a_settings(endpoint)):
            yield f"s3a://{BUCKET}"
    finally:
        server.stop()


def _s3a_settings(endpoint: str) -> dict[str, str]:
    return {
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "fs.s3a.access.key": "nobody",
        "fs.s3a.secret.key": "nothing",
        "fs.s3a.fast.upload.buffer": "bytebuffer",  # no files of its own beside the tests'
    }


def _load(spark: SparkSession, paths: list[str]) -> None:
    """Into a session that runs already: no other test needs these jars. Local executors look there, too."""
    jvm: Any = spark._jvm
    loader = spark._jsc.hadoopConfiguration().getClassLoader()
    for path in paths:
        loader.addURL(jvm.java.io.File(path).toURI().toURL())


@contextmanager
def _settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    configuration: Any = spark._jsc.hadoopConfiguration()
    before = {key: configuration.get(key) for key in settings}
    for key, value in settings.items():
        configuration.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            configuration.unset(key) if old is None else configuration.set(key, old)
