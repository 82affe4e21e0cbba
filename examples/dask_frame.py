"""Vectors of Parquet files with Dask: a sconce per worker process, with as many threads as the worker.

    python dask_frame.py INPUT OUTPUT [--model MODEL] [--workers 2] [--threads 1]

INPUT and OUTPUT are directories. OUTPUT gets the columns of INPUT, which has the column text, and the column embedding.
"""

import argparse

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
from dask.distributed import Client, get_worker
from sconce_embed import Embedder

VECTORS = pd.ArrowDtype(pa.list_(pa.float32()))


def embed(frame, model):
    worker = get_worker()
    if not hasattr(worker, "embedder"):
        worker.embedder = Embedder(model, threads=worker.state.nthreads)
    vectors = worker.embedder.embed(frame["text"])
    column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1]).cast(VECTORS.pyarrow_dtype)
    return frame.assign(embedding=pd.Series(column, index=frame.index, dtype=VECTORS))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    with Client(n_workers=args.workers, threads_per_worker=args.threads):
        frame = dd.read_parquet(args.input)
        vectors = frame.map_partitions(embed, args.model, meta=frame._meta.assign(embedding=pd.Series(dtype=VECTORS)))
        # A partition that is tried again replaces its file.
        vectors.to_parquet(args.output, compute_kwargs={"retries": 3})
