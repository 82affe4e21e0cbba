"""Vectors of Parquet files with Daft: --processes processes, each with one sconce of --cpus threads.

    python daft_class.py INPUT OUTPUT [--model MODEL] [--processes 2] [--cpus 1]

INPUT and OUTPUT are directories. OUTPUT gets the columns of INPUT, which has the column text, and the column embedding.
"""

import argparse

import daft
import pyarrow as pa
from daft import DataType, Series
from sconce_embed import Embedder

parser = argparse.ArgumentParser()
parser.add_argument("input")
parser.add_argument("output")
parser.add_argument("--model")
parser.add_argument("--processes", type=int, default=2)
parser.add_argument("--cpus", type=int, default=1)
args = parser.parse_args()


@daft.cls(cpus=args.cpus, max_concurrency=args.processes)
class Embed:
    def __init__(self, model, threads):
        self.embedder = Embedder(model, threads=threads)

    # A sconce that dies is an exception, after which Daft tries the batch again.
    @daft.method.batch(return_dtype=DataType.list(DataType.float32()), batch_size=4096, max_retries=3)
    def __call__(self, texts: Series) -> Series:
        vectors = self.embedder.embed(texts.to_arrow())
        return Series.from_arrow(pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1]))


frame = daft.read_parquet(args.input + "/*.parquet")
frame = frame.with_column("embedding", Embed(args.model, args.cpus)(frame["text"]))
frame.write_parquet(args.output, write_mode="overwrite")
