"""The LLaMA of //examples/llama in plain PyTorch: same names, shapes, rotary convention, loss and AdamW."""

import math

import torch
import torch.nn.functional as F


def rope(x, theta):
    """Rotate-half rotary embedding of x [b, h, s, d]."""
    d, s = x.shape[-1], x.shape[-2]
    inverse = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = torch.outer(torch.arange(s, dtype=torch.float64), inverse)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Llama:
    """Weights in a dict by their Hugging Face names; forward as functions of it."""

    def __init__(self, config, weights):
        self.c = config
        self.w = weights

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.c["norm_eps"]) * self.w[name]

    def attention(self, x, p):
        c, w = self.c, self.w
        b, s, dim = x.shape
        hd = dim // c["heads"]

        def heads(name, n):
            return (x @ w[f"{p}.{name}_proj.weight"].T).view(b, s, n, hd).transpose(1, 2)

        q, k = rope(heads("q", c["heads"]), c["rope_theta"]), rope(heads("k", c["kv_heads"]), c["rope_theta"])
        v = heads("v", c["kv_heads"])
        grouped = c["kv_heads"] != c["heads"]
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return o.transpose(1, 2).reshape(b, s, dim) @ w[f"{p}.o_proj.weight"].T

    def mlp(self, x, p):
        w = self.w
        return (F.silu(x @ w[f"{p}.gate_proj.weight"].T) * (x @ w[f"{p}.up_proj.weight"].T)) @ w[f"{p}.down_proj.weight"].T

    def loss(self, tokens):
        ids, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.w["model.embed_tokens.weight"][ids]
        for i in range(self.c["layers"]):
            p = f"model.layers.{i}"
            x = x + self.attention(self.norm(x, f"{p}.input_layernorm.weight"), f"{p}.self_attn")
            x = x + self.mlp(self.norm(x, f"{p}.post_attention_layernorm.weight"), f"{p}.mlp")
        logits = self.norm(x, "model.norm.weight") @ self.w["lm_head.weight"].T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def optimizer(config, weights):
    """AdamW with decay on the parameters that config["decayed"] names."""
    decayed = set(config["decayed"])
    groups = [
        {"params": [w for n, w in weights.items() if n in decayed], "weight_decay": config["weight_decay"]},
        {"params": [w for n, w in weights.items() if n not in decayed], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config["lr"], betas=(config["beta1"], config["beta2"]), eps=config["eps"])


def clip(weights, max_norm):
    """Scales gradients as the library does; returns the global norm before."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(w.grad.double()) for w in weights.values()]))
    if max_norm > 0:
        scale = min(1.0, max_norm / (norm.item() + 1e-6))
        for w in weights.values():
            w.grad.mul_(scale)
    return norm.item()


def step(model, opt, tokens, lr, max_norm):
    for group in opt.param_groups:
        group["lr"] = lr
    opt.zero_grad()
    loss = model.loss(tokens)
    loss.backward()
    norm = clip(model.w, max_norm)
    opt.step()
    return loss.item(), norm


def random_weights(c):
    """As the library starts them, but for the random numbers."""
    dim, hd, hidden = c["dim"], c["dim"] // c["heads"], c["hidden"]
    out = 0.02 / math.sqrt(2 * c["layers"])
    shapes = {"model.embed_tokens.weight": ((c["vocab"], dim), 0.02)}
    for i in range(c["layers"]):
        p = f"model.layers.{i}"
        shapes |= {
            f"{p}.self_attn.q_proj.weight": ((dim, dim), 0.02),
            f"{p}.self_attn.k_proj.weight": ((c["kv_heads"] * hd, dim), 0.02),
            f"{p}.self_attn.v_proj.weight": ((c["kv_heads"] * hd, dim), 0.02),
            f"{p}.self_attn.o_proj.weight": ((dim, dim), out),
            f"{p}.mlp.gate_proj.weight": ((hidden, dim), 0.02),
            f"{p}.mlp.up_proj.weight": ((hidden, dim), 0.02),
            f"{p}.mlp.down_proj.weight": ((dim, hidden), out),
            f"{p}.input_layernorm.weight": ((dim,), None),
            f"{p}.post_attention_layernorm.weight": ((dim,), None),
        }
    shapes |= {"model.norm.weight": ((dim,), None), "lm_head.weight": ((c["vocab"], dim), 0.02)}
    make = lambda shape, std: torch.ones(shape) if std is None else torch.randn(shape) * std
    return {n: make(shape, std).requires_grad_() for n, (shape, std) in shapes.items()}
