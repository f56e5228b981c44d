"""The attention kernel (//bench:attention) and PyTorch's scaled_dot_product_attention, one thread, in turn.

  bazel build //bench:attention && $(bench/peers/setup) bench/peers/attention.py [--rounds 3] [--filter fwd/4096]

Batch 1, 4 heads; thread CPU time, the fastest call of all rounds on both sides. GF/s count 4 s^2 d a head forward, 10
s^2 d backward, half of it under a causal mask. Prints for each row both speeds, their ratio, the ratio asked for, and
our share of oneDNN's 1024^3 product of the same type. q = oneDNN's f32 product speed over PyTorch's, in this run.
"""

import argparse
import json
import re
import subprocess
import time

import torch
import torch.nn.functional as F

HEADS = 4
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SHARES = {"fwd/4096/128/full/f32": 0.55, "fwd/4096/128/full/bf16": 0.35}


def names(pattern):
    all_rows = [f"{way}/{s}/{d}/{mask}/{t}" for t in DTYPES for way in ("fwd", "bwd") for s in (1024, 4096, 8192)
                for d in (64, 128) for mask in ("causal", "full")]
    return [name for name in all_rows if re.search(pattern, name)]


def shortest(fn, seconds, before=lambda: None):
    best, end = 1e9, time.monotonic() + seconds
    for i in range(1000):
        if i >= 2 and time.monotonic() > end:
            break
        argument = before()
        start = time.thread_time()
        fn(argument)
        best = min(best, time.thread_time() - start)
    return best


def product_speed():
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / shortest(lambda _: a @ b, 0.2) / 1e9


def flops(name):
    way, s, d, mask, _ = name.split("/")
    return (4 if way == "fwd" else 10) * int(s) ** 2 * int(d) * HEADS / (2 if mask == "causal" else 1)


def torch_speed(name, seconds):
    way, s, d, mask, dtype = name.split("/")
    q, k, v = (torch.randn(1, HEADS, int(s), int(d), dtype=DTYPES[dtype], requires_grad=way == "bwd") for _ in range(3))
    dout = torch.randn_like(q)
    attend = lambda _=None: F.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal")
    if way == "fwd":
        with torch.no_grad():
            return flops(name) / shortest(attend, seconds) / 1e9
    backward = lambda o: torch.autograd.grad(o, (q, k, v), dout)
    return flops(name) / shortest(backward, seconds, attend) / 1e9


def our_row(program, name, seconds):
    command = [program, f"--benchmark_filter=^{name}/", f"--benchmark_min_time={seconds}", "--benchmark_format=json"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out)["benchmarks"][0]


def wanted(name, q):
    way, s, _, mask, dtype = name.split("/")
    if dtype == "bf16":
        return 2 if way == "fwd" else 1.5
    return max(1, 0.7 * q) * (1.3 if mask == "causal" and s == "1024" else 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--filter", default="")
    parser.add_argument("--ours", default="bazel-bin/bench/attention")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ours, theirs, dnn, product = {}, {}, {}, 0
    for _ in range(args.rounds):
        for name in names(args.filter):
            row = our_row(args.ours, name, args.seconds)
            ours[name] = max(ours.get(name, 0), row["GF_per_s"])
            dtype = name.split("/")[-1]
            dnn[dtype] = max(dnn.get(dtype, 0), row["product_GF_per_s"])
            theirs[name] = max(theirs.get(name, 0), torch_speed(name, args.seconds))
        product = max(product, product_speed())
    q = dnn["f32"] / product if "f32" in dnn else 2.1
    print(f"PyTorch {torch.__version__}; product f32: {product:.0f} GF/s, oneDNN: "
          + ", ".join(f"{t} {s:.0f}" for t, s in dnn.items()) + f"; q = {q:.2f}")
    print("| row | ours | PyTorch | ratio | asked for | share of product | |")
    print("|---|---|---|---|---|---|---|")
    for name, a in ours.items():
        ratio, want, share = a / theirs[name], wanted(name, q), a / dnn[name.split("/")[-1]]
        ok = ratio >= want and share >= SHARES.get(name, 0)
        print(f"| {name} | {a:.0f} | {theirs[name]:.0f} | {ratio:.2f} | {want:.2f} | {share:.2f} | {'' if ok else 'missed'} |")


if __name__ == "__main__":
    main()
