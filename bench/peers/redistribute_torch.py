"""One rank of redistribute.py's PyTorch peer: DTensor.redistribute over gloo. Rank 0 reads rows from standard input."""

import json
import math
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
MESHES = {}


def placement(text):
    return Replicate() if text == "R" else Partial() if text == "P" else Shard(int(text[1:]))


def mesh_of(sizes):
    key = tuple(sizes)
    if key not in MESHES:
        MESHES[key] = init_device_mesh("cpu", key, mesh_dim_names=[f"a{i}" for i in range(len(key))])
    return MESHES[key]


def make_source(row, mesh):
    """This rank's shard: torch.chunk along each axis that shards, like the library's."""
    local = torch.ones(row["shape"], dtype=DTYPES[row["dtype"]])
    placements = [placement(p) for p in row["source"]]
    for axis, p in enumerate(placements):
        if p.is_shard():
            size = local.size(p.dim)
            chunk = math.ceil(size / mesh.size(axis))
            begin = min(size, mesh.get_local_rank(axis) * chunk)
            local = local.narrow(p.dim, begin, min(chunk, size - begin)).contiguous()
    shape = torch.Size(row["shape"])
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


def timed(source, target):
    dist.barrier()
    start = time.perf_counter()
    result = source.redistribute(source.device_mesh, target)
    result.to_local()
    return time.perf_counter() - start


def measure(row):
    """Median over calls of the slowest rank's time, in us."""
    source = make_source(row, mesh_of(row["mesh"]))
    target = [placement(p) for p in row["target"]]
    timed(source, target)
    calls = [max(3, min(1000, int(row["seconds"] / timed(source, target))))]
    dist.broadcast_object_list(calls)
    times = torch.tensor([timed(source, target) for _ in range(calls[0])], dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return statistics.median(times.tolist()) * 1e6


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    dist.init_process_group("gloo")
    leads = dist.get_rank() == 0
    while True:
        line = [sys.stdin.readline() if leads else None]
        dist.broadcast_object_list(line)
        if not line[0]:
            break
        us = measure(json.loads(line[0]))
        if leads:
            print(json.dumps({"us": us}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
