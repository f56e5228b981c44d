"""Repeats a run of //examples/llama:train in PyTorch from its dump, and compares.

  bazel-bin/examples/llama/train --steps=20 --dump=/tmp/run.safetensors
  $(bench/peers/setup) bench/peers/check_dump.py /tmp/run.safetensors

Leaves with status 1 unless losses and gradient norms agree to 1e-5 (relative) and each gradient of step 0 to
1e-4 (relative RMS).
"""

import sys

import torch
from safetensors import safe_open

import llama


def main(path):
    torch.set_num_threads(2)
    with safe_open(path, "pt") as f:
        meta = f.metadata()
        tensors = {name: f.get_tensor(name) for name in f.keys()}
    ints = ("vocab", "dim", "layers", "heads", "kv_heads", "hidden", "warmup", "steps")
    reals = ("rope_theta", "norm_eps", "lr", "beta1", "beta2", "eps", "weight_decay", "clip")
    config = {k: int(meta[k]) for k in ints} | {k: float(meta[k]) for k in reals}
    config["decayed"] = meta["decayed"].split(",")
    weights = {n: t.clone().requires_grad_() for n, t in tensors.items()
               if n.endswith(".weight") and not n.startswith("grad.")}
    model = llama.Llama(config, weights)

    model.loss(tensors["step.0.tokens"].long()).backward()
    worst, where = 0.0, ""
    for name, weight in weights.items():
        ours = tensors["grad." + name].double()
        rms = ((ours - weight.grad.double()).norm() / weight.grad.double().norm()).item()
        if rms >= worst:
            worst, where = rms, name

    opt = llama.optimizer(config, weights)
    loss_error = norm_error = 0.0
    for i in range(config["steps"]):
        lr = config["lr"] * min(1.0, (i + 1) / config["warmup"]) if config["warmup"] > 0 else config["lr"]
        loss, norm = llama.step(model, opt, tensors[f"step.{i}.tokens"].long(), lr, config["clip"])
        loss_error = max(loss_error, abs(loss / tensors["losses"][i].item() - 1))
        norm_error = max(norm_error, abs(norm / tensors["grad_norms"][i].item() - 1))
    print(f"{config['steps']} steps: losses differ by at most {loss_error:.2e}, gradient norms by {norm_error:.2e}; "
          f"gradients at step 0 by {worst:.2e} relative RMS ({where})")
    return 0 if loss_error <= 1e-5 and norm_error <= 1e-5 and worst <= 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
