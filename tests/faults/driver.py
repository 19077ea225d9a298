"""A driver to be killed: a Python process of its own on the JVM of the test-suite, whose start is spared.

Run as ``python -m tests.faults.driver WAREHOUSE``, with PYSPARK_GATEWAY_PORT and PYSPARK_GATEWAY_SECRET of that JVM.
"""

from __future__ import annotations

import sys

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from cbmm_spark.rescoring.job import rescore
from cbmm_spark.tables import Warehouse
from tests.faults.leaderboard import CONFIG, TONIGHT
from tests.spark.helpers import Heard


def attached() -> SparkSession:
    """A session of its own on the context that is there."""
    gateway = launch_gateway()
    jvm = gateway.jvm
    running = jvm.org.apache.spark.SparkContext.getOrCreate()
    java_context = jvm.org.apache.spark.api.java.JavaSparkContext(running)
    context = SparkContext(master="attached", appName="attached", gateway=gateway, jsc=java_context)
    shared = jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    return SparkSession(context, shared.newSession())


if __name__ == "__main__":
    spark = attached()
    rescore(spark, Warehouse(spark, sys.argv[1]), CONFIG, TONIGHT, Heard())
    sys.exit("was not killed")
