"""The rows of //bench:redistribute: ours on threads and on processes, PyTorch's DTensor over gloo, JAX, OpenMPI, and PyTorch's
greedy plan on our transport.

  bazel build //bench:redistribute //bench:mpi_collectives //tools/dtrun
  $(bench/peers/setup jax) bench/peers/redistribute.py [--rounds 3] [--rows '^2/.*/f32/(1KiB|64MiB)$']

Row by row, all in turn, for each round; OpenMPI at the end of a round. PyTorch: as many processes as ranks, one thread
each. JAX: as many CPU devices in one process; the faster of jit and device_put. OpenMPI: the collective that moves what
the row moves (its all-to-all without the packing that S0->S1 needs), the faster of both vader single-copy settings.
processes: the same program under dtrun; its x is its time over that of threads, round by round in its own run. TCP: the same
with DTENSOR_TRANSPORT=tcp; its x is its time over that of a bare socket.
Prints medians over rounds and the ratios to ours, and their geometric means over rows that move bytes; --json FILE
keeps all of it.
"""

import argparse
import json
import math
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
PEERS = ["PyTorch", "JAX", "OpenMPI", "greedy"]
# Ours on processes: what each is compared with in its own run, and what it is started with.
PROCESSES = {"processes": ("over_threads", {}), "TCP": ("over_socket", {"DTENSOR_TRANSPORT": "tcp"})}


def parse_row(name):
    """What redistribute_grid.cc says by a name: '2x2/S0,S1->S1,S0/f32/64MiB'."""
    mesh, pair, dtype, size = name.split("/")
    source, target = pair.split("->")
    if match := re.fullmatch(r"(\d+)(KiB|MiB)", size):
        numel = int(match[1]) * (1024 if match[2] == "KiB" else 1 << 20) // (2 if dtype == "bf16" else 4)
        rows = math.isqrt(numel // 2 if dtype == "bf16" else numel)
        shape = [rows, numel // rows]
    else:
        shape = [int(n) for n in size.split("x")]
    return dict(name=name, mesh=[int(n) for n in mesh.split("x")], source=source.split(","), target=target.split(","),
                dtype=dtype, shape=shape)


class Worker:
    """A peer's processes, which wait for rows and answer each with {"us": ...}."""

    def __init__(self, script, ranks, processes):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.processes = []
        for rank in range(processes):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                       OMP_NUM_THREADS="1")
            self.processes.append(subprocess.Popen([sys.executable, HERE / script], env=env, text=True, stdin=subprocess.PIPE,
                                                   stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL))

    def measure(self, row, seconds):
        lead = self.processes[0]
        lead.stdin.write(json.dumps(dict(row, seconds=seconds)) + "\n")
        lead.stdin.flush()
        for line in lead.stdout:
            if line.startswith("{"):
                return json.loads(line).get("us")
        raise RuntimeError("a peer has left")

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait()


def ours(program, name, seconds):
    """Counters of a row, and the time of its greedy replay where there is one."""
    out = subprocess.run([program, "--greedy", f"--seconds={seconds}", f"--benchmark_filter=^(greedy/)?{name}/i",
                          "--benchmark_format=json"], check=True, capture_output=True, text=True).stdout
    rows = {b["name"].split("/iter")[0]: b for b in json.loads(out)["benchmarks"]}
    return rows[name], rows.get("greedy/" + name)


def on_processes(dtrun, program, row, seconds, variables):
    """Counters of a row on as many processes as it has ranks."""
    out = subprocess.run([dtrun, "-n", str(math.prod(row["mesh"])), program, f"--seconds={seconds}",
                          f"--benchmark_filter=^{row['name']}/i", "--benchmark_format=json"],
                         check=True, capture_output=True, text=True, env=dict(os.environ, **variables)).stdout
    return json.loads("".join(line.removeprefix("[0] ") for line in out.splitlines()))["benchmarks"][0]


def openmpi(program, ranks, sizes):
    """us by name, of the faster setting."""
    best = {}
    for copy in ["cma", "none"]:
        out = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl_vader_single_copy_mechanism", copy,
                              "-n", str(ranks), program, *map(str, sizes)], check=True, capture_output=True, text=True).stdout
        for line in out.splitlines():
            row = json.loads(line)
            best[row["name"]] = min(row["us"], best.get(row["name"], math.inf))
    return best


def geomean(values):
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def number(x):
    return "" if x is None else f"{x:.3g}" if x < 100 else f"{x:,.0f}"


def print_table(results):
    peers = [p for p in [*PROCESSES, *PEERS] if any(p in r for r in results.values())]
    print("| row | moved B | bound B | us | GB/s | share of limit |" + "".join(f" {p} us | x |" for p in peers))
    print("|---" * (6 + 2 * len(peers)) + "|")
    ratios = {}
    for name, r in results.items():
        us = statistics.median(r["us"])
        middle = sorted(r["rows"], key=lambda b: b["us"])[len(r["rows"]) // 2]
        cells = [name, f"{middle['moved']:,.0f}", f"{middle['bound']:,.0f}", number(us), number(middle.get("GB_per_s")),
                 number(middle.get("share")) or middle.get("label", "")]
        for peer in peers:
            theirs = statistics.median(r[peer]) if r.get(peer) else None
            ratio = theirs / us if theirs else None
            if peer in PROCESSES:
                ratio = statistics.median(r[peer + " x"]) if r.get(peer + " x") else None
            cells += [number(theirs), number(ratio)]
            if ratio and middle["moved"] > 0:
                what = f"{peer} {PROCESSES[peer][0].replace('_', ' ')}" if peer in PROCESSES else f"{peer} over threads"
                ratios.setdefault((what, name.split("/")[0], name.split("/")[-1]), []).append(ratio)
            if theirs and r.get("processes") and peer in PEERS and middle["moved"] > 0:
                key = (f"{peer} over processes", name.split("/")[0], name.split("/")[-1])
                ratios.setdefault(key, []).append(theirs / statistics.median(r["processes"]))
        print("| " + " | ".join(cells) + " |")
    print()
    for (what, mesh, size), v in sorted(ratios.items(), key=lambda item: item[0][0]):
        print(f"{what}, mesh {mesh}, {size}: geometric mean {geomean(v):.2f}, {min(v):.2f} to {max(v):.2f}, {len(v)} rows")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", default=r"^2/.*/f32/(1KiB|64MiB)$")
    parser.add_argument("--seconds", type=float, default=0.15, help="for a row of each program, in a round")
    parser.add_argument("--ours", default="bazel-bin/bench/redistribute")
    parser.add_argument("--mpi", default="bazel-bin/bench/mpi_collectives")
    parser.add_argument("--dtrun", default="bazel-bin/tools/dtrun/dtrun")
    parser.add_argument("--peers", default=",".join([*PROCESSES, *PEERS]))
    parser.add_argument("--json")
    args = parser.parse_args()
    peers = args.peers.split(",")
    listed = subprocess.run([args.ours, "--benchmark_list_tests"], check=True, capture_output=True, text=True).stdout
    rows = [parse_row(name) for name in (line.split("/iter")[0] for line in listed.splitlines()) if re.search(args.rows, name)]
    rows.sort(key=lambda row: math.prod(row["mesh"]))
    results, worlds = {}, sorted({math.prod(row["mesh"]) for row in rows})
    for ranks in worlds:
        here = [row for row in rows if math.prod(row["mesh"]) == ranks]
        workers = {}
        if "PyTorch" in peers:
            workers["PyTorch"] = Worker("redistribute_torch.py", ranks, ranks)
        if "JAX" in peers:
            workers["JAX"] = Worker("redistribute_jax.py", ranks, 1)
        for worker in workers.values():
            worker.measure(here[0], 0)  # it has started when it answers
        for _ in range(args.rounds):
            for row in here:
                result = results.setdefault(row["name"], {"us": [], "rows": []})
                mine, greedy = ours(args.ours, row["name"], args.seconds)
                result["us"].append(mine["us"])
                result["rows"].append(mine)
                if greedy and "greedy" in peers:
                    result.setdefault("greedy", []).append(greedy["us"])
                for way in PROCESSES:
                    if way in peers and len(row["mesh"]) == 1:
                        other = on_processes(args.dtrun, args.ours, row, args.seconds, PROCESSES[way][1])
                        result.setdefault(way, []).append(other["us"])
                        if PROCESSES[way][0] in other:
                            result.setdefault(way + " x", []).append(other[PROCESSES[way][0]])
                for peer, worker in workers.items():
                    us = worker.measure(row, args.seconds)
                    if us is not None:
                        result.setdefault(peer, []).append(us)
            if "OpenMPI" in peers:
                sizes = sorted({math.prod(row["shape"]) * 4 for row in here if row["dtype"] == "f32" and len(row["mesh"]) == 1})
                for name, us in openmpi(args.mpi, ranks, sizes).items() if sizes else []:
                    if name in results:
                        results[name].setdefault("OpenMPI", []).append(us)
        for worker in workers.values():
            worker.close()
    print_table(results)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
