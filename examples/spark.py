"""Vectors of Parquet files with Spark: a sconce per task, with as many threads as the task has CPUs (spark.task.cpus).

    spark-submit [--conf spark.task.cpus=4] spark.py INPUT OUTPUT [MODEL]

OUTPUT gets the columns of INPUT, which has the column text, and the column embedding.
"""

import sys

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, FloatType
from sconce_embed import Embedder

source, output = sys.argv[1:3]
model = sys.argv[3] if len(sys.argv) > 3 else None


def embed(batches):
    with Embedder(model, threads=TaskContext.get().cpus()) as embedder:
        for batch in batches:
            vectors = embedder.embed(batch.column("text"))
            column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1]).cast(pa.list_(pa.float32()))
            yield pa.RecordBatch.from_arrays([*batch.columns, column], names=[*batch.schema.names, "embedding"])


session = SparkSession.builder.appName("sconce").getOrCreate()
# Spark tries a task that has failed, or whose worker has died, again (spark.task.maxFailures), and keeps the files of one attempt.
frame = session.read.parquet(source)
schema = frame.limit(0).schema.add("embedding", ArrayType(FloatType()))
frame.mapInArrow(embed, schema).write.mode("overwrite").parquet(output)
