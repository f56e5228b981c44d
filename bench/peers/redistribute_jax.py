"""redistribute.py's JAX peer: as many CPU devices as ranks in this process. Reads rows from standard input."""

import json
import math
import os
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_num_cpu_devices", int(os.environ["WORLD_SIZE"]))

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16}


def dims_of(placements, rank):
    """For each tensor dimension the axes that shard it, outermost first."""
    dims = [[] for _ in range(rank)]
    for axis, p in enumerate(placements):
        if p[0] == "S":
            dims[int(p[1:])].append(f"a{axis}")
    return dims


def spec(dims):
    return PartitionSpec(*(tuple(axes) if axes else None for axes in dims))


def divides(row, mesh):
    """JAX shards evenly or not at all."""
    for placements in (row["source"], row["target"]):
        for size, axes in zip(row["shape"], dims_of(placements, len(row["shape"]))):
            if size % math.prod(mesh.shape[a] for a in axes):
                return False
    return True


def reducer(row, mesh, target):
    """Terms stand in leading dimensions, one for each partial axis; each is reduced, or reduced and scattered, and what
    then lies wrong is left to XLA."""
    partial = [f"a{i}" for i, p in enumerate(row["source"]) if p == "P"]
    source_dims = dims_of(row["source"], len(row["shape"]))
    result_dims = [list(axes) for axes in source_dims]
    scatter = []
    for i, p in enumerate(row["source"]):
        if p == "P":
            to = row["target"][i]
            scatter.append((f"a{i}", int(to[1:]) if to[0] == "S" else None))
            if to[0] == "S":
                result_dims[int(to[1:])].append(f"a{i}")

    def local(x):
        x = x.reshape(x.shape[len(partial):])
        for axis, dim in scatter:
            if dim is None:
                x = jax.lax.psum(x, axis)
            else:
                x = jax.lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True)
        return x

    source_spec = PartitionSpec(*partial, *spec(source_dims))
    mapped = jax.shard_map(local, mesh=mesh, in_specs=source_spec, out_specs=spec(result_dims))
    leading = [mesh.shape[a] for a in partial]
    return NamedSharding(mesh, source_spec), leading, [jax.jit(mapped, out_shardings=target)]


def ways(row, mesh):
    """The source's sharding, its leading dimensions, and functions that redistribute it."""
    target = NamedSharding(mesh, spec(dims_of(row["target"], len(row["shape"]))))
    if "P" in row["source"]:
        return reducer(row, mesh, target)
    source = NamedSharding(mesh, spec(dims_of(row["source"], len(row["shape"]))))
    return source, [], [jax.jit(lambda x: x, out_shardings=target), lambda x: jax.device_put(x, target)]


def timed(fn, x):
    """Of a source that nobody has seen: JAX remembers on an array what it fetched of it."""
    x = jax.block_until_ready(jnp.copy(x))
    start = time.perf_counter()
    jax.block_until_ready(fn(x))
    return time.perf_counter() - start


def measure(row):
    """Median over calls of the fastest way, in us; None for what JAX refuses."""
    devices = np.array(jax.devices()).reshape(row["mesh"])
    mesh = Mesh(devices, [f"a{i}" for i in range(devices.ndim)])
    if not divides(row, mesh):
        return None
    sharding, leading, fns = ways(row, mesh)
    x = jax.device_put(np.ones(leading + row["shape"], DTYPES[row["dtype"]]), sharding)
    best = math.inf
    for fn in fns:
        timed(fn, x)
        calls = max(3, min(1000, int(row["seconds"] / timed(fn, x))))
        best = min(best, statistics.median(timed(fn, x) for _ in range(calls)))
    return best * 1e6


def main():
    for line in sys.stdin:
        try:
            us = measure(json.loads(line))
        except Exception as error:  # a row that JAX cannot do is no reason to stop
            print("JAX:", error, file=sys.stderr)
            us = None
        print(json.dumps({"us": us}), flush=True)


if __name__ == "__main__":
    main()
