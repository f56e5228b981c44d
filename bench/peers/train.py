"""Tokens per second of training, ours (//bench:train, two ranks) and PyTorch's (unsharded, two threads; also by torch.compile), in turn.

  bazel build //bench:train && $(bench/peers/setup) bench/peers/train.py [--rounds 3] [--ours bazel-bin/bench/train]

Prints, for each shape, the rates, their ratios, and the ratio asked for: max(1, 0.7 q), q = oneDNN's f32 product speed
over PyTorch's at 1024^3 on one core, measured in this run.
"""

import argparse
import json
import statistics
import subprocess
import time

import torch

import llama

SHAPES = [(128, 4, 4, 256), (256, 4, 8, 256), (512, 8, 4, 512)]  # dim, layers, batch, sequence


def product_speed():
    """GF/s of PyTorch's f32 product at 1024^3 on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = 1e9
    for _ in range(7):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    torch.set_num_threads(threads)
    return 2 * 1024**3 / best / 1e9


def torch_rate(dim, layers, batch, sequence, seconds, compiled=False):
    config = dict(vocab=256, dim=dim, layers=layers, heads=dim // 64, kv_heads=dim // 64, hidden=max(64, dim * 8 // 3 // 64 * 64),
                  rope_theta=10000.0, norm_eps=1e-5, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
    weights = llama.random_weights(config)
    config["decayed"] = [n for n, w in weights.items() if w.dim() >= 2]
    model, opt = llama.Llama(config, weights), llama.optimizer(config, weights)
    if compiled:
        torch._dynamo.config.recompile_limit = 256  # a layer is a function of its own here
        model.loss = torch.compile(model.loss)
    tokens = torch.randint(0, 256, (batch, sequence + 1))
    for _ in range(2):
        llama.step(model, opt, tokens, 1e-3, 1.0)
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        llama.step(model, opt, tokens, 1e-3, 1.0)
        times.append(time.perf_counter() - start)
    return batch * sequence / statistics.median(times)


def our_rates(program):
    out = subprocess.run([program, "--benchmark_format=json", "--benchmark_filter=tp[+]sp"], check=True, capture_output=True, text=True).stdout
    rows = [(b["name"].split("/"), b) for b in json.loads(out)["benchmarks"]]
    return {parts[1]: b for parts, b in rows if parts[2] == "tp+sp"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--ours", default="bazel-bin/bench/train")
    args = parser.parse_args()
    torch.set_num_threads(2)
    ours, theirs, compiled, q = {}, {}, {}, []
    for _ in range(args.rounds):
        for name, row in our_rates(args.ours).items():
            ours.setdefault(name, []).append(row["tokens_per_s"])
            product = row["product_GF_per_s"]
        q.append(product / product_speed())
        for shape in SHAPES:
            name = "x".join(map(str, shape))
            theirs.setdefault(name, []).append(torch_rate(*shape, args.seconds))
            compiled.setdefault(name, []).append(torch_rate(*shape, args.seconds, compiled=True))
    ratio = statistics.median(q)
    print(f"q = {ratio:.2f}; asked for: {max(1, 0.7 * ratio):.2f}")
    for name in theirs:
        a, b, c = (statistics.median(rates[name]) for rates in (ours, theirs, compiled))
        print(f"{name:>14}: ours {a:9.0f}  PyTorch {b:9.0f}  compiled {c:9.0f} tokens/s  ratios {a / b:.2f} {a / c:.2f}")


if __name__ == "__main__":
    main()
