"""Makes cases.safetensors: what PyTorch computes, in f64 on the CPU, for the library's operators on small shapes.

  $(bench/peers/setup) tests/torch_cases/make_cases.py

Case c has the tensors c/operand0..., c/result0..., c/dresult0... (gradients of the results, where they have one) and
c/gradient0... (of the operands). What the library calls for it, attributes included, is the row of the same name in
torch_cases.cc, so a case that is new here needs a row there. The file's metadata name the version of PyTorch that made
it. Another version, or another CPU, may make other last bits.
"""

import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(1)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
INF, NAN = math.inf, math.nan
# Where functions bend, and where they end.
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -3.0, 800.0, -800.0, INF, -INF, NAN])

tensors = {}


def randn(*shape):
    return torch.randn(*shape)


def positive(*shape):
    return torch.rand(*shape) + 0.25


def few(*shape):
    """Of five numbers, so that some are equal."""
    return torch.randint(-2, 3, shape).double()


def ids(n, *shape):
    return torch.randint(0, n, shape)


def integers(*shape):
    return torch.randint(-9, 10, shape)


def flags(*shape):
    return torch.randint(0, 2, shape).bool()


def case(name, function, *operands):
    """Stores one case. Results that ask for no gradient get none, and operands that are no floats."""
    assert f"{name}/operand0" not in tensors, name
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in operands]
    results = function(*leaves)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    wanted = [i for i, x in enumerate(leaves) if x.requires_grad]
    recorded = {r: torch.randn(y.shape).to(y.dtype) for r, y in enumerate(results) if y.requires_grad}
    gradients = []
    if recorded:
        gradients = torch.autograd.grad([results[r] for r in recorded], [leaves[i] for i in wanted],
                                        list(recorded.values()))
    stored = {f"operand{i}": x for i, x in enumerate(operands)}
    stored |= {f"result{r}": y for r, y in enumerate(results)}
    stored |= {f"dresult{r}": dy for r, dy in recorded.items()}
    stored |= {f"gradient{i}": g for i, g in zip(wanted, gradients)}
    for part, x in stored.items():
        tensors[f"{name}/{part}"] = x.detach().clone().contiguous()


def einsums():
    def einsum(text):
        return lambda *operands: torch.einsum(text, *operands)

    case("einsum_scores", einsum("bqhd,bkhd->bhqk"), randn(2, 3, 2, 4), randn(2, 5, 2, 4))
    case("einsum_values", einsum("bhqk,bkhd->bqhd"), randn(2, 2, 3, 5), randn(2, 5, 2, 4))
    case("einsum_heads", lambda x, w: torch.einsum("bti,hdi->bthd", x, w.reshape(3, 2, 4)), randn(2, 3, 4), randn(6, 4))
    case("einsum_outer", einsum("i,j->ji"), randn(3), randn(4))
    case("einsum_dots", einsum("bi,bi->b"), randn(5, 3), randn(5, 3))
    case("einsum_apart", einsum("ijk,lj->kl"), randn(2, 3, 4), randn(5, 3))
    case("einsum_broadcast", einsum("...i,...ij->...j"), randn(3, 1, 4), randn(2, 4, 5))
    case("einsum_two_sums", einsum("ijk,kjl->li"), randn(2, 3, 4), randn(4, 3, 5))
    case("einsum_scalar", einsum("ij,ji->"), randn(3, 4), randn(4, 3))
    case("einsum_empty", einsum("ij,jk->ki"), randn(3, 0), randn(0, 2))
    case("einsum_permuted", einsum("ijk->kij"), randn(2, 3, 4))
    case("einsum_summed", einsum("ijk->j"), randn(2, 3, 4))
    case("einsum_split", lambda x: x.reshape(3, 2, 4).permute(1, 0, 2), randn(3, 8))


def features_last(function, dims):
    """A function of x [b, c, n...] and more as one of x [b, n..., c], with that for its result."""
    to_first, to_last = [0, dims + 1] + list(range(1, dims + 1)), [0] + list(range(2, dims + 2)) + [1]
    return lambda x, *more: function(x.permute(to_first), *more).permute(to_last)


def windows():
    def conv(dims, **options):
        function = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
        return features_last(lambda x, w: function(x, w, **options), dims)

    case("windows", lambda x: F.pad(x, (0, 0, 1, 1)).unfold(1, 3, 1), randn(2, 5, 4))
    case("windows_with", lambda x: F.pad(x, (0, 0, 2, 0), value=1.5).unfold(1, 3, 2), randn(2, 5, 4))
    case("conv", conv(1), randn(2, 7, 3), randn(4, 3, 3))
    case("conv_same", conv(2, padding=1), randn(2, 5, 4, 3), randn(4, 3, 3, 3))
    case("conv_strided", conv(2, stride=(2, 3), padding=(3, 1)), randn(2, 9, 7, 3), randn(2, 3, 7, 4))
    case("conv_dilated", conv(2, dilation=(2, 1), padding=(2, 1)), randn(1, 6, 5, 2), randn(3, 2, 3, 3))
    case("conv_wide", conv(1, padding=4), randn(2, 5, 3), randn(4, 3, 2))
    case("conv_grouped", conv(2, groups=2, padding=1), randn(2, 4, 3, 4), randn(6, 2, 3, 3))
    case("conv_depthwise", conv(1, groups=4, padding=1), randn(2, 5, 4), randn(4, 1, 3))
    case("conv_points", conv(2), randn(2, 3, 4, 3), randn(5, 3, 1, 1))
    case("conv_points_strided", conv(2, stride=2), randn(2, 5, 4, 3), randn(5, 3, 1, 1))
    case("conv_patches", conv(2, stride=2), randn(2, 4, 6, 3), randn(5, 3, 2, 2))
    case("conv_volumes", conv(3, stride=(1, 2, 1), padding=1), randn(1, 3, 4, 3, 2), randn(3, 2, 3, 3, 3))
    case("conv_causal", features_last(lambda x, w: F.conv1d(F.pad(x, (4, 0)), w, dilation=2), 1),
         randn(2, 6, 3), randn(4, 3, 3))
    case("max_pool", features_last(lambda x: F.max_pool2d(x, 3, stride=2, padding=1), 2), randn(2, 7, 6, 3))
    case("max_pool_whole", features_last(lambda x: F.max_pool1d(x, 2), 1), randn(2, 7, 3))
    case("average_pool", features_last(lambda x: F.avg_pool2d(x, (2, 3), stride=(2, 1), padding=(1, 1)), 2),
         randn(2, 5, 4, 3))


def positions():  # the last family of main(): what is drawn here changes no other case
    case("cumsum", lambda x: x.cumsum(1), randn(3, 5, 2))
    case("cumsum_rows", lambda x: x.cumsum(0), randn(7, 3))
    case("cumsum_integers", lambda x: x.cumsum(1), integers(2, 6))
    case("tril", torch.tril, randn(4, 5))
    case("tril_below", lambda x: x.tril(-1), randn(2, 3, 4))
    case("triu", lambda x: x.triu(1), randn(5, 4))
    case("one_hot", lambda i: F.one_hot(i, 5).double(), ids(5, 2, 3))
    case("index_select", lambda x, i: x.index_select(1, i), randn(2, 5, 3), ids(5, 4))
    case("index_select_rows", lambda x, i: x.index_select(0, i), randn(4, 3), ids(4, 6))


def products():
    case("matmul", torch.matmul, randn(3, 4), randn(4, 5))
    case("matmul_outer", torch.matmul, randn(3, 1), randn(1, 5))
    case("matmul_long", torch.matmul, randn(2, 33), randn(33, 3))
    case("matmul_batches", torch.matmul, randn(2, 3, 4), randn(2, 4, 3))
    case("matmul_broadcast", torch.matmul, randn(3, 1, 2, 4), randn(2, 4, 3))
    case("matmul_empty", torch.matmul, randn(3, 0), randn(0, 2))
    case("linear", F.linear, randn(2, 3, 4), randn(5, 4))
    case("linear_vector", F.linear, randn(4), randn(3, 4))
    case("linear_bias", F.linear, randn(2, 3, 4), randn(5, 4), randn(5))
    case("linear_bias_empty", F.linear, randn(3, 0), randn(2, 0), randn(2))


def arithmetic():
    ends = torch.tensor([0.0, 1.0, -1.0, 0.0, INF, -INF, NAN, 2.0])
    others = torch.tensor([0.0, 0.0, 0.0, 2.0, INF, INF, 1.0, NAN])
    for name, function in (("add", torch.add), ("sub", torch.sub), ("mul", torch.mul)):
        case(name, function, randn(3, 5), randn(3, 5))
        case(f"{name}_broadcast", function, randn(2, 1, 4), randn(3, 1))
        case(f"{name}_ends", function, ends, others)
        case(f"{name}_integers", function, integers(3, 5), integers(3, 1))
    case("div", torch.div, randn(3, 5), positive(3, 5))
    case("div_broadcast", torch.div, randn(5), positive(2, 3, 1))
    case("div_ends", torch.div, ends, others)
    case("add_n", lambda a, b, c: a + b + c, randn(3, 1), randn(2, 1, 4), randn(4))
    for name, function in (("maximum", torch.maximum), ("minimum", torch.minimum)):
        case(name, function, randn(3, 5), randn(3, 5))
        case(f"{name}_ties", function, few(3, 5), few(5))
        case(f"{name}_ends", function, ends, others)
        case(f"{name}_integers", function, integers(3, 5), integers(5))
    case("neg", torch.neg, randn(3, 5))
    case("neg_integers", torch.neg, integers(3, 5))
    case("scale", lambda x: x * -1.75, randn(3, 5))
    case("scale_to_zero", lambda x: x * 0, SPECIAL)
    case("add_scalar", lambda x: x + 0.3, randn(3, 5))
    case("sub_scalar_tensor", torch.sub, randn(3, 5), randn(()))


def functions():
    of_all = {"abs": torch.abs, "exp": torch.exp, "relu": F.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
              "silu": F.silu, "gelu_erf": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
              "pow_2": lambda x: x**2, "pow_3": lambda x: x**3, "pow_0": lambda x: x**0}
    of_positive = {"log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "pow_half": lambda x: x**0.5,
                   "pow_minus_half": lambda x: x**-0.5, "pow_minus_1.5": lambda x: x**-1.5,
                   "pow_0.3": lambda x: x**0.3}
    for name, function in (of_all | of_positive).items():
        case(name, function, randn(3, 5) * 2 if name in of_all else positive(3, 5))
        case(f"{name}_special", function, SPECIAL)
    case("silu_mul", lambda gate, up: F.silu(gate) * up, randn(3, 5), randn(3, 5))
    case("silu_mul_special", lambda gate, up: F.silu(gate) * up, SPECIAL, torch.flip(SPECIAL, (0,)))


def comparisons():
    ends = torch.tensor([0.0, 1.0, NAN, NAN, INF, -INF, INF])
    others = torch.tensor([-0.0, 2.0, NAN, 1.0, INF, INF, NAN])
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        function = torch.eq if name == "equal" else getattr(torch, name)
        case(name, function, few(3, 5), few(5))
        case(f"{name}_ends", function, ends, others)
        case(f"{name}_integers", function, ids(4, 3, 5), ids(4, 3, 1))
    case("logical_and", torch.logical_and, flags(3, 5), flags(5))
    case("logical_or", torch.logical_or, flags(3, 5), flags(3, 1))
    case("logical_not", torch.logical_not, flags(3, 5))
    case("where", torch.where, flags(3, 5), randn(3, 5), randn(3, 5))
    case("where_integers", torch.where, flags(5), integers(3, 5), integers(3, 1))
    case("where_broadcast", torch.where, flags(3, 1), randn(4), randn(2, 1, 1))
    case("where_ends", torch.where, torch.tensor([True, False, True, False]), torch.tensor([1, NAN, INF, 2.0]),
         torch.tensor([NAN, 1, 2, -INF]))
    case("cast_bf16", lambda x: x.bfloat16(), randn(3, 5))
    case("cast_f32", lambda x: x.float(), randn(3, 5))
    case("cast_i32", lambda x: x.int(), randn(3, 5) * 3)
    case("cast_from_i64", lambda x: x.double(), ids(9, 3, 5))


def rows():
    masked = randn(3, 6)
    masked[0, 1] = masked[2, 0] = masked[2, 5] = -INF
    apart = randn(3, 19) * 300
    for name, function in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
        def along(x):
            return function(x, dim=-1)
        case(name, along, randn(2, 3, 5))
        case(f"{name}_masked", along, masked)
        case(f"{name}_apart", along, apart)
    case("rms_norm", lambda x, w: F.rms_norm(x, w.shape, w, 1e-5), randn(2, 3, 5), randn(5))
    case("layer_norm_empty", lambda x, w, b: F.layer_norm(x, w.shape, w, b, 1e-5), randn(0, 4), randn(4), randn(4))
    case("rms_norm_empty", lambda x, w: F.rms_norm(x, w.shape, w, 1e-5), randn(0, 4), randn(4))
    case("rms_norm_long", lambda x, w: F.rms_norm(x, w.shape, w, 1e-5), randn(2, 19), randn(19))
    case("rms_norm_zeros", lambda x, w: F.rms_norm(x, w.shape, w, 1e-3), torch.zeros(2, 4), randn(4))
    case("layer_norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b, 1e-5), randn(2, 3, 5), randn(5), randn(5))
    case("layer_norm_far", lambda x, w, b: F.layer_norm(x, w.shape, w, b, 1e-5), randn(2, 19) + 32, randn(19),
         randn(19))


def reductions():
    tied = few(3, 4, 2)
    holes = few(3, 4)
    holes[0, 2] = holes[1, 0] = holes[1, 3] = NAN
    holes[2] = INF
    for name, dims in (("1", (1,)), ("0_2", (0, 2)), ("all", (0, 1, 2))):
        case(f"sum_{name}", lambda x: x.sum(dims), randn(3, 4, 2))
        case(f"mean_{name}", lambda x: x.mean(dims), randn(3, 4, 2))
        case(f"max_{name}", lambda x: x.amax(dims), randn(3, 4, 2))
        case(f"min_{name}", lambda x: x.amin(dims), randn(3, 4, 2))
        case(f"max_ties_{name}", lambda x: x.amax(dims), tied)
        case(f"min_ties_{name}", lambda x: x.amin(dims), tied)
    for name, function in (("sum", torch.sum), ("max", torch.amax), ("min", torch.amin)):
        case(f"{name}_integers", lambda x: function(x, 1), integers(3, 5, 2))
    case("sum_empty", lambda x: x.sum(1), randn(3, 0, 2))
    case("mean_empty", lambda x: x.mean(1), randn(3, 0, 2))
    case("max_ends", lambda x: x.amax(1), holes)
    case("min_ends", lambda x: x.amin(1), holes)
    case("sum_of_squares", lambda x: (x * x).sum().detach(), randn(3, 4))
    case("argmax", lambda x: x.argmax(1), randn(3, 5, 2))
    case("argmax_integers", lambda x: x.argmax(1), ids(3, 4, 5))
    case("argmax_ties", lambda x: x.argmax(0), few(6, 3))
    case("argmax_ends", lambda x: x.argmax(-1), holes)


def views():
    case("reshape", lambda x: x.reshape(3, 8), randn(6, 4))
    case("transpose", lambda x: x.transpose(0, 2), randn(3, 4, 5))
    case("permute", lambda x: x.permute(2, 0, 1), randn(3, 4, 5))
    case("expand", lambda x: x.expand(2, 3, 4), randn(3, 1))
    case("slice", lambda x: x[:, 1:4], randn(3, 6))
    case("slice_rows", lambda x: x[4:8], randn(8, 3))
    case("split", lambda x: x.split([2, 0, 4], 1), randn(4, 6))
    case("concat", lambda a, b: torch.cat([a, b], 1), randn(3, 2), randn(3, 4))
    case("concat_rows", lambda a, b, c: torch.cat([a, b, c], 0), randn(1, 3), randn(2, 3), randn(4, 3))
    case("concat_empty", lambda a, b: torch.cat([a, b], 1), randn(3, 0), randn(3, 4))
    case("concat_integers", lambda a, b: torch.cat([a, b], 1), integers(3, 2), integers(3, 2))
    case("stack", lambda a, b: torch.stack([a, b], 1), randn(3, 2), randn(3, 2))
    case("pad", lambda x: F.pad(x, (2, 1)), randn(2, 3))
    case("pad_rows_with", lambda x: F.pad(x, (0, 0, 4, 2), value=-1.5), randn(6, 2))


def rope(x, theta, offset):
    """Rotates the pairs (x[i], x[i + d/2]) of x [b, t, h, d] by the angles position * theta^(-2i/d)."""
    d = x.shape[-1]
    inverse = theta ** (-torch.arange(0, d, 2).double() / d)
    angle = torch.outer(torch.arange(x.shape[1]).double() + offset, inverse)[None, :, None, :]
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def attention(q, k, v, allowed=None, **options):
    """[b, s, h, d]; keys that a query sees are allowed[s, t], all without."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True, **options)
    return o.transpose(1, 2)


def scores(q, k):
    """[b, h, s, t]."""
    groups = q.shape[2] // k.shape[2]
    return torch.einsum("bshd,bthd->bhst", q, k.repeat_interleave(groups, 2)) / math.sqrt(q.shape[3])


def attention_lse(q, k, v):
    """Full attention, and the logarithm of each query's sum of exponentials [b, h, s]."""
    return attention(q, k, v), scores(q, k).logsumexp(-1)


def attention_lse_alone(q, k, v):
    """The same, without a gradient of the second."""
    o, lse = attention_lse(q, k, v)
    return o, lse.detach()


def attention_sinks(q, k, v, sinks):
    """Full attention to the keys and to one more for each head, which has this score and no value."""
    all_scores = torch.cat([scores(q, k), sinks[:, None, None].expand(q.shape[0], -1, q.shape[1], 1)], -1)
    weights = all_scores.softmax(-1)[..., :-1]
    return torch.einsum("bhst,bthd->bshd", weights, v.repeat_interleave(q.shape[2] // v.shape[2], 2))


def transformers():
    case("embedding", lambda i, table: F.embedding(i, table), ids(5, 2, 4), randn(5, 3))
    case("rope", lambda x: rope(x, 100, 0), randn(2, 3, 2, 4))
    case("rope_offset", lambda x: rope(x, 10000, 7), randn(1, 3, 1, 6))

    def qkv(s, t, hq, hkv, d=4, b=2):
        return randn(b, s, hq, d), randn(b, t, hkv, d), randn(b, t, hkv, d)

    def positions(s, t):
        """Of the queries as a column, and of the keys as a row, where both sequences end together."""
        return torch.arange(s)[:, None] + max(0, t - s), torch.arange(t)[None, :] + max(0, s - t)

    def causal(s, t):
        i, j = positions(s, t)
        return j <= i

    i, j = positions(5, 5)
    offset = torch.arange(5)[None, :] <= torch.arange(2)[:, None] + 1
    case("attention_full", attention, *qkv(3, 5, 2, 2))
    case("attention_causal", lambda q, k, v: attention(q, k, v, is_causal=True), *qkv(4, 4, 2, 2))
    case("attention_grouped", lambda q, k, v: attention(q, k, v, is_causal=True), *qkv(4, 4, 6, 2))
    case("attention_scale", lambda q, k, v: attention(q, k, v, scale=0.3), *qkv(2, 3, 4, 1, d=10, b=1))
    case("attention_window", lambda q, k, v: attention(q, k, v, (j <= i) & (j > i - 2)), *qkv(5, 5, 2, 2))
    case("attention_prefix", lambda q, k, v: attention(q, k, v, (j <= i) | (j < 3)), *qkv(5, 5, 2, 1))
    case("attention_documents", lambda q, k, v: attention(q, k, v, (j <= i) & ((j >= 2) == (i >= 2))),
         *qkv(5, 5, 2, 2))
    case("attention_longer_keys", lambda q, k, v: attention(q, k, v, causal(3, 5)), *qkv(3, 5, 2, 2))
    case("attention_no_key", lambda q, k, v: attention(q, k, v, causal(4, 2)), *qkv(4, 2, 2, 2))
    case("attention_offset", lambda q, k, v: attention(q, k, v, offset), *qkv(2, 5, 2, 1))
    case("attention_lse", attention_lse_alone, *qkv(3, 4, 4, 2))


def losses():
    def entropy(logits, targets, classes=None, reduction="none", **options):
        flat = logits[..., :classes].flatten(0, -2)
        losses = F.cross_entropy(flat, targets.flatten(), reduction=reduction, **options)
        return losses.reshape(targets.shape) if reduction == "none" else losses

    ignored = ids(5, 6)
    ignored[1] = ignored[4] = -100
    case("cross_entropy", entropy, randn(2, 3, 5), ids(5, 2, 3))
    case("cross_entropy_apart", entropy, randn(3, 19) * 300, ids(19, 3))
    case("cross_entropy_ignored", entropy, randn(6, 5), ignored)
    case("cross_entropy_ignored_class", lambda x, t: entropy(x, t, ignore_index=1), randn(6, 3), ids(3, 6))
    case("cross_entropy_smoothed", lambda x, t: entropy(x, t, label_smoothing=0.3), randn(6, 5), ignored)
    case("cross_entropy_all_smooth", lambda x, t: entropy(x, t, label_smoothing=1.0), randn(4, 5), ids(5, 4))
    case("cross_entropy_padded", lambda x, t: entropy(x, t, classes=5), randn(6, 8), ignored)
    case("cross_entropy_padded_smoothed", lambda x, t: entropy(x, t, classes=5, label_smoothing=0.1), randn(6, 8),
         ignored)
    case("cross_entropy_mean", lambda x, t: entropy(x, t, reduction="mean"), randn(2, 3, 5), ids(5, 2, 3))
    case("cross_entropy_mean_ignored", lambda x, t: entropy(x, t, reduction="mean", label_smoothing=0.2), randn(6, 5),
         ignored)
    none = torch.full((3,), -100)
    case("cross_entropy_mean_empty", lambda x, t: entropy(x, t, reduction="mean"), randn(0, 5), ids(5, 0))
    case("cross_entropy_mean_of_none", lambda x, t: entropy(x, t, reduction="mean"), randn(3, 5), none)


def copies_and_bounds():
    case("clone", torch.clone, randn(3, 5))
    case("clone_integers", torch.clone, integers(3, 5))
    for name, low, high in (("clamp", -0.5, 1.0), ("clamp_low", 0.0, INF), ("clamp_high", -INF, 0.5),
                            ("clamp_equal", 1.0, 1.0)):
        case(name, lambda x: torch.clamp(x, low, high), randn(3, 5))
        case(f"{name}_special", lambda x: torch.clamp(x, low, high), SPECIAL)


def expert_mlp(x, experts, weights, gate, up, down):
    """Each token's sum of weights[..., j] times the SwiGLU of expert experts[..., j]; matrices are [e, out, in]."""
    g = torch.einsum("...kfd,...d->...kf", gate[experts], x)
    u = torch.einsum("...kfd,...d->...kf", up[experts], x)
    y = torch.einsum("...kdf,...kf->...kd", down[experts], F.silu(g) * u)
    return (weights[..., None] * y).sum(-2)


def mixtures():
    for name, k, shape in (("topk", 2, (3, 4, 7)), ("topk_all", 7, (3, 4, 7)), ("topk_vector", 1, (5,))):
        case(name, lambda x: torch.topk(x, k, dim=-1, sorted=True), randn(*shape))

    def choices(names, n, k, *shape):
        """k different ones of these for each of the tokens, in random order."""
        order = torch.rand(*shape, n).argsort(-1)[..., :k]
        return torch.tensor(names)[order]

    def operands(experts, d=3, f=4, e=4):
        return (randn(*experts.shape[:-1], d), experts, positive(*experts.shape), randn(e, f, d), randn(e, f, d),
                randn(e, d, f))

    twice = choices([0, 1, 2, 3], 4, 3, 5)
    twice[1, 2] = twice[1, 0]
    twice[4] = 2
    case("expert_mlp", expert_mlp, *operands(choices([0, 1, 3], 3, 2, 2, 3), d=5, f=6))  # none for expert 2
    case("expert_mlp_one", expert_mlp, *operands(choices([0, 1, 2, 3], 4, 1, 6)))
    case("expert_mlp_all", expert_mlp, *operands(choices([0, 1, 2, 3], 4, 4, 3)))
    case("expert_mlp_twice", expert_mlp, *operands(twice))
    case("expert_mlp_vector", expert_mlp, *operands(choices([0, 1, 2, 3], 4, 2)))
    case("expert_mlp_empty", expert_mlp, *operands(choices([0, 1, 2, 3], 4, 2, 0)))
    case("bincount", lambda x: torch.histc(x.double(), 5, 0, 5), ids(5, 3, 4))
    case("bincount_of_others", lambda x: torch.histc(x.double(), 4, -0.5, 3.5), ids(9, 20) - 3)
    case("bincount_empty", lambda x: torch.histc(x.double(), 3, 0, 3), ids(3, 2, 0))
    take = lambda x, indices: torch.take_along_dim(x, indices, -1)
    case("take_along_dim", take, randn(3, 4, 7), ids(7, 3, 4, 9))
    case("take_along_dim_vector", take, randn(5), ids(5, 3))


def clamped_expert_mlp(x, experts, weights, gate_up, gate_up_bias, down, down_bias):
    """The experts of GPT-OSS: gates and ups are columns in turn, of [e, in, out] matrices; slope 1.5, limit 0.8."""
    both = torch.einsum("...d,...kdf->...kf", x, gate_up[experts]) + gate_up_bias[experts]
    g, u = both[..., ::2].clamp(max=0.8), both[..., 1::2].clamp(-0.8, 0.8)
    h = (u + 1) * g * torch.sigmoid(1.5 * g)
    y = torch.einsum("...kf,...kfd->...kd", h, down[experts]) + down_bias[experts]
    return (weights[..., None] * y).sum(-2)


def gpt_oss():
    def qkv(s, t, hq, hkv, d=4, b=2):
        return randn(b, s, hq, d), randn(b, t, hkv, d), randn(b, t, hkv, d)

    case("attention_lse_gradient", attention_lse, *qkv(3, 4, 4, 2))
    case("attention_sinks", attention_sinks, *qkv(4, 4, 4, 2), randn(4))
    case("attention_sinks_far", attention_sinks, *qkv(2, 5, 2, 2), torch.tensor([-6.0, 6.0]))

    def operands(experts, d=3, f=4, e=4):
        return (randn(*experts.shape[:-1], d), experts, positive(*experts.shape), randn(e, d, 2 * f), randn(e, 2 * f),
                randn(e, f, d), randn(e, d))

    case("clamped_expert_mlp", clamped_expert_mlp, *operands(torch.rand(2, 3, 4).argsort(-1)[..., :2]))
    case("clamped_expert_mlp_idle", clamped_expert_mlp, *operands(torch.tensor([[0, 3], [3, 1], [1, 3]]), d=5, f=6))
    case("clamped_expert_mlp_vector", clamped_expert_mlp, *operands(torch.tensor([2, 1])))
    case("clamped_expert_mlp_empty", clamped_expert_mlp, *operands(ids(4, 0, 2)))


def attention_lengths(q, k, v, lengths):
    """Full attention of each batch entry to as many keys as this."""
    there = torch.arange(k.shape[1]) < lengths[:, None]
    return attention(q, k, v, there[:, None, None])


def padded():
    case("attention_key_lengths", attention_lengths, randn(3, 4, 4, 2), randn(3, 5, 2, 2), randn(3, 5, 2, 2),
         torch.tensor([2, 5, 1]))


def taken():
    case("take_along_dim_rows", lambda x, i: torch.take_along_dim(x, i, 0), randn(5, 3), ids(5, 4, 3))
    case("take_along_dim_middle", lambda x, i: torch.take_along_dim(x, i, 1), randn(2, 4, 3), ids(4, 2, 5, 3))


def more_queries():
    case("attention_key_lengths_few", attention_lengths, randn(2, 5, 2, 2), randn(2, 3, 2, 2), randn(2, 3, 2, 2),
         torch.tensor([1, 2]))


def main():
    for family in (products, arithmetic, functions, comparisons, rows, reductions, views, transformers, losses,
                   copies_and_bounds, mixtures, einsums, windows, positions, gpt_oss, padded,
                   taken, more_queries):
        family()
    path = pathlib.Path(__file__).with_name("cases.safetensors")
    save_file(tensors, path, metadata={"torch": torch.__version__})  # of several the order is random
    cases = {name.split("/")[0] for name in tensors}
    print(f"{path}: {len(cases)} cases, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
