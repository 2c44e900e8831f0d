"""Topics to Parquet: a Spark data source, the streaming job, files that are right once.

`register(spark)` makes the formats `polymq` (read) and `polymq-parquet` (the sink's writer) known
to a Spark session. The package has to be installed where the driver runs and where the executors
run: Spark imports it there by name, nothing is sent along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the formats known to a session."""
    # Imported here: pyspark is an extra, and the rest of this package is useful without it.
    from polymq.spark_sink.sink import PolymqParquetSink  # noqa: PLC0415
    from polymq.spark_sink.source import PolymqDataSource  # noqa: PLC0415

    spark.dataSource.register(PolymqDataSource)
    spark.dataSource.register(PolymqParquetSink)
