"""Convolutions, batch norm, a ResNet-18 and sums along a dimension (//bench:conv), and PyTorch's, one thread, in turn.

  bazel build //bench:conv && $(bench/peers/setup) bench/peers/conv.py [--rounds 3] [--filter same]

f32, thread CPU time, the shortest call of all rounds on both sides. PyTorch has features last, too
(torch.channels_last). Prints milliseconds, and how many times as fast as PyTorch we are.
"""

import argparse
import json
import re
import subprocess
import time

import torch
import torch.nn.functional as F


def conv(x, w, **options):
    function = F.conv1d if w.dim() == 3 else F.conv2d
    return lambda: function(x, w, **options)


def causal(x, w):
    return lambda: F.conv1d(F.pad(x, (3, 0)), w, groups=512)


class Layer(torch.nn.Module):
    """A basic layer of ResNet."""

    def __init__(self, n, m, stride):
        super().__init__()
        self.layers = torch.nn.Sequential(*norm(n, m, 3, stride), torch.nn.ReLU(), *norm(m, m, 3))
        self.shortcut = torch.nn.Sequential(*(norm(n, m, 1, stride) if n != m else []))

    def forward(self, x):
        return F.relu(self.layers(x) + self.shortcut(x))


def norm(n, m, size, stride=1):
    return torch.nn.Conv2d(n, m, size, stride, size // 2, bias=False), torch.nn.BatchNorm2d(m)


def resnet18():
    stem = [*norm(3, 64, 7, 2), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1)]
    layers = [layer for n, m in ((64, 64), (64, 128), (128, 256), (256, 512))
              for layer in (Layer(n, m, 1 if n == m else 2), Layer(m, m, 1))]
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(512, 10)]
    return torch.nn.Sequential(*stem, *layers, *head).to(memory_format=torch.channels_last)


def with_parameters(module, x):
    """A call, and that gradients are wanted of parameters, too."""
    call = lambda: module(x)
    call.parameters = list(module.parameters())
    return call


def operands(*shapes):
    made = [torch.randn(*shape) for shape in shapes]
    return [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in made]


def rows():
    yield "same", operands((8, 64, 56, 56), (64, 64, 3, 3)), lambda x, w: conv(x, w, padding=1)
    yield "points", operands((8, 64, 56, 56), (256, 64, 1, 1)), conv
    yield "stem", operands((2, 3, 224, 224), (64, 3, 7, 7)), lambda x, w: conv(x, w, stride=2, padding=3)
    yield "patches", operands((8, 3, 224, 224), (768, 3, 16, 16)), lambda x, w: conv(x, w, stride=16)
    yield "depthwise", operands((8, 192, 28, 28), (192, 1, 3, 3)), lambda x, w: conv(x, w, padding=1, groups=192)
    yield "causal", operands((2, 512, 2048), (512, 1, 4)), causal
    yield "batch_norm", operands((8, 64, 56, 56)), lambda x: with_parameters(torch.nn.BatchNorm2d(64), x)
    yield "resnet18", operands((8, 3, 128, 128)), lambda x: with_parameters(resnet18(), x)
    yield "cumsum_rows", operands((256, 4096)), lambda x: lambda: x.cumsum(1)
    yield "cumsum_columns", operands((8, 512, 256)), lambda x: lambda: x.cumsum(1)


def shortest(fn, seconds):
    best, end = 1e9, time.monotonic() + seconds
    for i in range(1000):
        if i >= 3 and time.monotonic() > end:
            break
        start = time.thread_time()
        fn()
        best = min(best, time.thread_time() - start)
    return 1e3 * best


def torch_ms(leaves, make, train, seconds):
    leaves = [x.detach().requires_grad_(train) for x in leaves]
    forward = make(*leaves)
    if not train:
        with torch.no_grad():
            return shortest(forward, seconds)
    leaves = leaves + getattr(forward, "parameters", [])
    return shortest(lambda: torch.autograd.grad(forward().sum(), leaves), seconds)


def our_ms(program, name, seconds):
    command = [program, f"--benchmark_filter=^{name}/", f"--benchmark_min_time={seconds}", "--benchmark_format=json"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out)["benchmarks"][0]["ms"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--filter", default="")
    parser.add_argument("--ours", default="bazel-bin/bench/conv")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}\n| row | ours, ms | PyTorch, ms | times as fast |\n|---|---|---|---|")
    for row, leaves, make in rows():
        for way in ("forward", "train"):
            name = f"{row}/{way}"
            if not re.search(args.filter, name):
                continue
            ours = theirs = 1e9
            for _ in range(args.rounds):
                ours = min(ours, our_ms(args.ours, name, args.seconds))
                theirs = min(theirs, torch_ms(leaves, make, way == "train", args.seconds))
            print(f"| {name} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()
