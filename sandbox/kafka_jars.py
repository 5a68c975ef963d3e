"""Jars that Maven fetches: Apache Kafka's, which a broker runs from, and the connector by which Spark reads from it;
and Kafka Connect with Debezium's connectors, beside which feeds are measured.

Python's standard library only: `sandbox.install` asks for them before anything is installed.

What must stay true: a folder of jars is whole or not there; another version has another folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

KAFKA = "4.3.1"
# Spark 4.3.0, which uv.lock has, has no connector on Maven Central; that of 4.2.0 reads with it.
CONNECTOR = "4.2.0"
# The newest of each that Maven Central had whole.
DEBEZIUM = {"mysql": "3.6.1.Final", "mariadb": "3.5.0.Final"}
# The version of the log4j that comes with Kafka.
_LOG4J = "2.25.4"
# Of the classes that a broker loads, in the folder of its jars; made by its first start there.
ARCHIVE = "classes.jsa"
_POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>vreplication</groupId>
  <artifactId>jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """Artifacts with all that they need, but for what is there already where they are used."""

    name: str
    title: str
    artifacts: tuple[str, ...]
    there_already: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return Path("~/.cache/vreplication").expanduser() / self.name

    def pom(self) -> str:
        """What Maven is told."""
        return _POM.format(dependencies="\n".join(self._dependency(artifact) for artifact in self.artifacts))

    def _dependency(self, artifact: str) -> str:
        exclusions = "".join(f"<exclusion>{_coordinates(name)}</exclusion>" for name in self.there_already)
        return f"    <dependency>{_coordinates(artifact)}<exclusions>{exclusions}</exclusions></dependency>"


BROKER = Jars(
    name=f"kafka-{KAFKA}",
    title=f"Apache Kafka {KAFKA}",
    artifacts=(
        f"org.apache.kafka:kafka_2.13:{KAFKA}",
        f"org.apache.kafka:kafka-tools:{KAFKA}",
        f"org.apache.logging.log4j:log4j-slf4j-impl:{_LOG4J}",
    ),
)
SPARK_CONNECTOR = Jars(
    name=f"spark-kafka-{CONNECTOR}",
    title=f"Spark's Kafka connector {CONNECTOR}",
    artifacts=(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR}",),
    # Spark has them, in its own versions, which must not meet others.
    there_already=(
        "com.google.code.findbugs:jsr305",
        "org.apache.hadoop:hadoop-client-api",
        "org.apache.hadoop:hadoop-client-runtime",
        "org.apache.spark:spark-tags_2.13",
        "org.lz4:lz4-java",
        "at.yawk.lz4:lz4-java",
        "org.scala-lang:scala-library",
        "org.scala-lang.modules:scala-parallel-collections_2.13",
        "org.slf4j:slf4j-api",
        "org.xerial.snappy:snappy-java",
    ),
)
ALL = (BROKER, SPARK_CONNECTOR)
CONNECT = Jars(
    name=f"connect-{KAFKA}",
    title=f"Kafka Connect {KAFKA}",
    artifacts=(
        f"org.apache.kafka:connect-runtime:{KAFKA}",
        f"org.apache.kafka:connect-json:{KAFKA}",
        f"org.apache.logging.log4j:log4j-slf4j-impl:{_LOG4J}",
    ),
)


def debezium(flavor: str) -> Jars:
    """Its connector for MariaDB or MySQL, as a plugin of Kafka Connect."""
    version = DEBEZIUM[flavor]
    return Jars(
        name=f"debezium-{flavor}-{version}",
        title=f"Debezium {version} for {flavor}",
        artifacts=(f"io.debezium:debezium-connector-{flavor}:{version}",),
        # A worker has them, and gives a plugin its own.
        there_already=(
            "org.apache.kafka:connect-api",
            "org.apache.kafka:kafka-clients",
            "org.slf4j:slf4j-api",
        ),
    )


def _coordinates(artifact: str) -> str:
    """`group:artifact:version`, or without the version, as Maven has it."""
    names = ("groupId", "artifactId", "version")
    return "".join(f"<{name}>{value}</{name}>" for name, value in zip(names, artifact.split(":"), strict=False))
