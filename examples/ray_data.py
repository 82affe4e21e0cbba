"""Vectors of Parquet files with Ray Data: --actors actors of --cpus CPUs, each with one sconce of as many threads.

    python ray_data.py INPUT OUTPUT [--model MODEL] [--actors 1] [--cpus 1]

INPUT and OUTPUT are directories. OUTPUT gets the columns of INPUT, which has the column text, and the column embedding.
"""

import argparse

import pyarrow as pa
import ray
from sconce_embed import Embedder, SconceError


class Embed:
    def __init__(self, model, threads):
        self.embedder = Embedder(model, threads=threads)

    def __call__(self, table):
        vectors = self.embedder.embed(table["text"])
        return table.append_column("embedding", pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1]))


parser = argparse.ArgumentParser()
parser.add_argument("input")
parser.add_argument("output")
parser.add_argument("--model")
parser.add_argument("--actors", type=int, default=1)
parser.add_argument("--cpus", type=int, default=1)
args = parser.parse_args()

# Ray starts an actor that dies again; a sconce that dies alone is an exception, after which the batch is tried again, too.
ray.data.DataContext.get_current().actor_task_retry_on_errors = [SconceError]
# Reading and writing wait for files: they leave the CPUs to the actors.
light = {"num_cpus": 0.25}
ray.data.read_parquet(args.input, ray_remote_args=light).map_batches(
    Embed, fn_constructor_args=(args.model, args.cpus), batch_format="pyarrow", batch_size=4096,
    compute=ray.data.ActorPoolStrategy(size=args.actors), num_cpus=args.cpus,
).write_parquet(args.output, mode="overwrite", ray_remote_args=light)
