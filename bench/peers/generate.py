"""Tokens per second of decoding, ours (//bench:generate) and PyTorch's (transformers), on one core each, in turn.

  bazel build //bench:generate && $(bench/peers/setup transformers) bench/peers/generate.py [--rounds 3]

A model of SmolLM2-135M's sizes with random weights, f32, one row, greedy. For each number of tokens behind it: the rates
of the median step, their ratio of each round, and its median. Run it with nothing else on the machine, or at real-time priority,
so that the others wait, in runs below a minute:

  chrt -f 50 taskset -c 1 ~/.cache/dtensor/venv/bin/python bench/peers/generate.py --rounds 2 --behind 32 512
"""

import argparse
import json
import statistics
import subprocess
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def torch_rates(steps, attention, lengths):
    config = LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                         num_attention_heads=9, num_key_value_heads=3, rope_theta=1e5, tie_word_embeddings=True,
                         max_position_embeddings=8192, attn_implementation=attention)
    model = LlamaForCausalLM(config).eval()
    rates = {}
    with torch.no_grad():
        for behind in lengths:
            out = model(torch.full((1, behind), 5), use_cache=True, logits_to_keep=1)
            cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
            times = []
            for _ in range(steps):
                start = time.perf_counter()
                out = model(token, past_key_values=cache, use_cache=True)
                token = out.logits[:, -1:].argmax(-1)
                token.item()
                times.append(time.perf_counter() - start)
                cache.crop(-1)
            rates[behind] = 1 / statistics.median(times)
    return rates


def our_rates(program, lengths):
    only = f"/({'|'.join(map(str, lengths))})/"
    out = subprocess.run([program, "--benchmark_format=json", f"--benchmark_filter={only}"], check=True, capture_output=True, text=True).stdout
    return {int(b["name"].split("/")[1]): b["tokens_per_s"] for b in json.loads(out)["benchmarks"]}


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--behind", type=int, nargs="+", default=[32, 512, 2048], choices=[32, 512, 2048])
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--ours", default="bazel-bin/bench/generate")
parser.add_argument("--attention", default="sdpa", choices=["sdpa", "eager"])
args = parser.parse_args()
torch.set_num_threads(1)
rounds = []
for i in range(args.rounds):
    rounds.append((our_rates(args.ours, args.behind), torch_rates(args.steps, args.attention, args.behind)))
    for behind in args.behind:
        ours, theirs = rounds[-1][0][behind], rounds[-1][1][behind]
        print(f"round {i + 1}, {behind:5} tokens behind: ours {ours:6.1f} tokens/s, PyTorch {theirs:6.1f}, ratio {ours / theirs:.2f}")
for behind in args.behind:
    print(f"{behind:5} tokens behind: median ratio {statistics.median(o[behind] / t[behind] for o, t in rounds):.2f}")
