"""Makes cases.safetensors: what Hugging Face's models compute, in f64 on the CPU, at sizes of a few.

  $(bench/peers/setup transformers) tests/hugging_face/make_cases.py

Case c has c/operand0... (token ids, and last a mask of padding if there is one), c/result0... (of models with experts,
the last is the balancing loss) and c/gradient/NAME of parameters NAME: of the sum of all results, each number times
formula("result0...", its index). Its parameters are formula(NAME, index) as well, and are not stored;
hugging_face_test.cc has the same formula. The configuration is in the file's metadata, under c, as the class wrote it,
beside the versions that made the file. Other versions, or another CPU, may make other last bits.

NAME is that of saved files: of each expert's matrices, which the classes join.
"""

import contextlib
import json
import math
import pathlib
import tempfile
from unittest import mock

import torch
import transformers
from formula import formula
from safetensors.torch import load_file, save_file
from transformers import (BertConfig, BertModel, DeepseekV3Config, DeepseekV3ForCausalLM, Gemma3ForCausalLM,
                          Gemma3TextConfig, GemmaConfig, GemmaForCausalLM, Glm4MoeConfig, Glm4MoeForCausalLM, GPT2Config, GPT2LMHeadModel, GptOssConfig,
                          GptOssForCausalLM, LlamaConfig, LlamaForCausalLM,
                          MistralConfig, MistralForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          Qwen3MoeConfig, Qwen3MoeForCausalLM)

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

tensors = {}
metadata = {"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}"}


def parts(model, tensors):
    """Views of `tensors`, which have the paths of the model's parameters, by the names that saved files have."""
    if model.config.model_type == "gpt_oss":  # all experts of a layer together
        return dict(tensors)
    mixtral = model.config.model_type == "mixtral"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    views = {}
    for path, x in tensors.items():
        path = path.replace(".mlp.", ".block_sparse_moe.") if mixtral else path
        folder, experts, joined = path.partition(".experts.")
        if not experts:
            views[path] = x
            continue
        for e, matrices in enumerate(x):
            names = [gate, up] if joined == "gate_up_proj" else [down]
            for name, matrix in zip(names, matrices.chunk(len(names))):
                views[f"{folder}.experts.{e}.{name}.weight"] = matrix
    return views


def stored_of(model):
    """Parameters and buffers, by the names that saved files have."""
    biases = {path: x for path, x in model.named_buffers() if "e_score_correction_bias" in path}
    return parts(model, dict(model.named_parameters()) | biases)


def fill(model):
    """Makes it an f64 model whose parameters are what the formula says."""
    model = model.double().eval()
    with torch.no_grad():
        for path, x in stored_of(model).items():
            x.copy_(formula(path, x.numel()).view_as(x))
    return model


def case(name, model, *operands, **more):
    """Of a model that is called with these token ids; `more`: operands with names. Gradients are stored of all
    parameters, or in a case NAME_otherwise of the first, the embedding, to which they come through all others.
    """
    model = fill(model)
    outputs = model(*operands, **more)
    results = [outputs.logits] if "logits" in outputs else [outputs.last_hidden_state, outputs.pooler_output]
    results += [outputs.aux_loss] if "aux_loss" in outputs else []
    loss = sum((y * formula(f"result{r}", y.numel()).view_as(y)).sum() for r, y in enumerate(results))
    loss.backward()
    stored = {f"operand{i}": x for i, x in enumerate([*operands, *more.values()])}
    stored |= {f"result{r}": y for r, y in enumerate(results)}
    gradients = parts(model, {path: x.grad for path, x in model.named_parameters()})
    gradients = {f"gradient/{path}": x for path, x in gradients.items()}
    stored |= dict(list(gradients.items())[:1]) if "_otherwise" in name else gradients
    for part, x in stored.items():
        tensors[f"{name}/{part}"] = x.detach().clone().contiguous()
    metadata[name] = json.dumps(model.config.to_dict())


def f64_for_f32():
    """Within it, code that asks for f32, whatever the model's type, gets f64."""
    stack = contextlib.ExitStack()
    for where, name, instead in ((torch, "float32", torch.float64), (torch, "float", torch.float64),
                                 (torch.Tensor, "float", torch.Tensor.double)):
        stack.enter_context(mock.patch.object(where, name, instead))
    return stack


def k_th_gap(scores, k):
    """How far the k-th largest score of a row is from the next one, at least."""
    ordered = scores.sort(-1, descending=True).values
    return (ordered[..., k - 1] - ordered[..., k]).min().item()


def choices_of(model):
    """A list that each call of the model appends to: scores of which the largest k are chosen, and k."""
    choices = []

    def add(router, inputs, output):
        logits, k = output[0].detach(), router.top_k
        bias = getattr(router, "e_score_correction_bias", None)
        if bias is None:
            choices.append((logits.softmax(-1), k))
            return
        scores = logits.sigmoid() + bias
        if router.num_group > 1:
            groups = scores.unflatten(-1, (router.num_group, -1))
            sums = groups.topk(2, dim=-1).values.sum(-1)
            choices.append((sums, router.topk_group))
            least = sums.topk(router.topk_group, dim=-1).values[..., -1:]
            scores = groups.masked_fill((sums < least).unsqueeze(-1), -math.inf).flatten(-2)
        choices.append((scores, k))

    for path, module in model.named_modules():
        if hasattr(module, "top_k") and hasattr(module, "weight"):
            module.register_forward_hook(add)
    return choices


def mixture(name, model_class, config, *operands):
    """Of a model with experts, in f64 throughout: its norms, angles and softmaxes, those of routers too, are f32
    otherwise. Asserts that the results are then the same but for f32's rounding, that no choice of experts is close,
    and that the names are those of a saved file.
    """
    with f64_for_f32():
        case(name, model_class(config), *operands)
    model = fill(model_class(config))
    choices = choices_of(model)
    outputs = model(*operands)
    stored = tensors[f"{name}/result0"]
    error = ((outputs.logits - stored).abs().max() / stored.square().mean().sqrt()).item()
    assert 0 < error < 2e-5, (name, error)
    gap = min(k_th_gap(scores, k) for scores, k in choices)
    assert gap > 1e-2, (name, gap)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = load_file(f"{folder}/model.safetensors")
    ours = stored_of(model)
    assert saved.keys() == ours.keys() and all(torch.equal(x, ours[path]) for path, x in saved.items()), name
    print(f"{name}: {error:.1e} from f32's, the scores between which it chooses {gap:.1e} apart")


def ids(words, *shape):
    """No token is 0, which BERT does not learn."""
    n = torch.tensor(shape).prod()
    return (1 + torch.arange(n) * 7 % (words - 1)).view(shape)


gpt2 = dict(vocab_size=11, n_positions=9, n_embd=8, n_layer=2, n_head=2, attn_implementation="eager")
case("gpt2", GPT2LMHeadModel(GPT2Config(**gpt2)), ids(11, 2, 5))
case("gpt2_otherwise",
     GPT2LMHeadModel(GPT2Config(**gpt2, n_inner=12, activation_function="gelu", tie_word_embeddings=False,
                                layer_norm_epsilon=1e-2, scale_attn_by_inverse_layer_idx=True)), ids(11, 2, 9))
case("gpt2_otherwise_unscaled", GPT2LMHeadModel(GPT2Config(**gpt2, n_inner=4, scale_attn_weights=False)), ids(11, 1, 4))
bert = dict(vocab_size=11, max_position_embeddings=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=12, type_vocab_size=3, attn_implementation="eager")
case("bert", BertModel(BertConfig(**bert)), ids(11, 2, 5), token_type_ids=ids(4, 2, 5) - 1)
case("bert_otherwise", BertModel(BertConfig(**bert, hidden_act="gelu_new", layer_norm_eps=1e-2)), ids(11, 2, 9),
     token_type_ids=ids(4, 2, 9) - 1)
case("bert_padded", BertModel(BertConfig(**bert)), ids(11, 3, 5), token_type_ids=ids(4, 3, 5) - 1,
     attention_mask=torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]))
llama = dict(vocab_size=11, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=12, attn_implementation="eager")
case("llama", LlamaForCausalLM(LlamaConfig(**llama)), ids(11, 2, 5))
case("llama_otherwise", LlamaForCausalLM(LlamaConfig(**llama, tie_word_embeddings=True, rms_norm_eps=1e-2,
                                                     rope_parameters={"rope_type": "default", "rope_theta": 50.0})),
     ids(11, 2, 9))
case("llama_otherwise_biased", LlamaForCausalLM(LlamaConfig(**llama, attention_bias=True, mlp_bias=True, head_dim=6)),
     ids(11, 2, 5))
case("llama_otherwise_linear", LlamaForCausalLM(LlamaConfig(**llama, rope_parameters={
    "rope_type": "linear", "rope_theta": 50.0, "factor": 3.0})), ids(11, 2, 9))
case("llama_otherwise_llama3", LlamaForCausalLM(LlamaConfig(**(llama | dict(hidden_size=64)), rope_parameters={
    "rope_type": "llama3", "rope_theta": 50.0, "factor": 3.0, "low_freq_factor": 0.5, "high_freq_factor": 2.0,
    "original_max_position_embeddings": 12})), ids(11, 1, 9))
yarn = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 40}
case("llama_otherwise_yarn", LlamaForCausalLM(LlamaConfig(**(llama | dict(hidden_size=64)), rope_parameters=yarn)),
     ids(11, 1, 9))
case("qwen3_otherwise_yarn", Qwen3ForCausalLM(Qwen3Config(**llama, head_dim=12, rope_parameters=yarn | {
    "beta_fast": 8.0, "beta_slow": 0.5, "truncate": False, "mscale": 1.5, "mscale_all_dim": 0.5})), ids(11, 2, 7))
case("mistral_otherwise", MistralForCausalLM(MistralConfig(**llama, sliding_window=3)), ids(11, 2, 9))
case("qwen2_otherwise", Qwen2ForCausalLM(Qwen2Config(**llama, use_sliding_window=True, sliding_window=3, max_window_layers=1)),
     ids(11, 2, 9))
case("qwen3", Qwen3ForCausalLM(Qwen3Config(**llama, head_dim=6, tie_word_embeddings=True)), ids(11, 2, 5))
with f64_for_f32():
    case("gemma", GemmaForCausalLM(GemmaConfig(**llama, head_dim=6)), ids(11, 2, 5))
    gemma3 = llama | dict(num_hidden_layers=3, head_dim=6, sliding_window=3, query_pre_attn_scalar=9)
    case("gemma3_text", Gemma3ForCausalLM(Gemma3TextConfig(**gemma3, sliding_window_pattern=2)), ids(11, 2, 7))
    case("gemma3_text_otherwise", Gemma3ForCausalLM(Gemma3TextConfig(
        **gemma3, layer_types=["full_attention", "sliding_attention", "full_attention"], attention_bias=True,
        hidden_activation="gelu", tie_word_embeddings=False, rms_norm_eps=1e-2, rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}})), ids(11, 2, 9))
# grouped_mm, the default, has no f64
experts = llama | dict(experts_implementation="eager", output_router_logits=True)
mixture("mixtral", MixtralForCausalLM, MixtralConfig(**experts, num_local_experts=5), ids(11, 2, 5))
mixture("mixtral_otherwise", MixtralForCausalLM,
        MixtralConfig(**experts, num_local_experts=5, num_experts_per_tok=1, sliding_window=3, head_dim=8,
                      rms_norm_eps=1e-2, rope_parameters={"rope_type": "default", "rope_theta": 100.0}), ids(11, 2, 9))
gpt_oss = experts | dict(num_local_experts=4, num_experts_per_tok=3, head_dim=8, sliding_window=3, swiglu_limit=0.3)
mixture("gpt_oss", GptOssForCausalLM, GptOssConfig(**gpt_oss), ids(11, 2, 5))
mixture("gpt_oss_otherwise", GptOssForCausalLM,
        GptOssConfig(**gpt_oss, attention_bias=False, swiglu_alpha=1.2, tie_word_embeddings=True,
                     layer_types=["full_attention", "sliding_attention"],
                     rope_parameters={"rope_type": "default", "rope_theta": 50.0}), ids(11, 2, 6))
experts |= dict(moe_intermediate_size=6)
mixture("qwen2_moe", Qwen2MoeForCausalLM,
        Qwen2MoeConfig(**experts, num_experts=6, num_experts_per_tok=2, shared_expert_intermediate_size=10),
        ids(11, 2, 4))
mixture("qwen2_moe_otherwise", Qwen2MoeForCausalLM,
        Qwen2MoeConfig(**(experts | dict(num_hidden_layers=3)), num_experts=4, num_experts_per_tok=3,
                       shared_expert_intermediate_size=9, norm_topk_prob=True, qkv_bias=False, mlp_only_layers=[1]),
        ids(11, 2, 3))
mixture("qwen3_moe", Qwen3MoeForCausalLM,
        Qwen3MoeConfig(**experts, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True, head_dim=6), ids(11, 2, 4))
mixture("qwen3_moe_otherwise", Qwen3MoeForCausalLM,
        Qwen3MoeConfig(**(experts | dict(moe_intermediate_size=8)), num_experts=4, num_experts_per_tok=3,
                       attention_bias=True, tie_word_embeddings=True, rms_norm_eps=1e-2, use_sliding_window=True,
                       sliding_window=3, rope_parameters={"rope_type": "default", "rope_theta": 50.0}), ids(11, 2, 5))
mixture("qwen3_moe_otherwise_every_second", Qwen3MoeForCausalLM,
        Qwen3MoeConfig(**experts, num_experts=4, num_experts_per_tok=2, head_dim=6, decoder_sparse_step=2),
        ids(11, 2, 5))
experts = llama | dict(experts_implementation="eager", moe_intermediate_size=6, head_dim=8)
mixture("glm4_moe", Glm4MoeForCausalLM,
        Glm4MoeConfig(**experts, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=2, use_qk_norm=True,
                      attention_bias=True, routed_scaling_factor=1.5), ids(11, 2, 4))
mixture("glm4_moe_otherwise", Glm4MoeForCausalLM,
        Glm4MoeConfig(**experts, n_routed_experts=6, num_experts_per_tok=3, n_group=3, topk_group=2,
                      norm_topk_prob=False, first_k_dense_replace=0, rope_parameters={
                          "rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.75}), ids(11, 2, 5))
experts = llama | dict(experts_implementation="eager", moe_intermediate_size=6, num_key_value_heads=4,
                       n_routed_experts=6, num_experts_per_tok=3, n_group=3, topk_group=2, kv_lora_rank=5,
                       qk_rope_head_dim=4, qk_nope_head_dim=6)
mixture("deepseek_v3", DeepseekV3ForCausalLM,
        DeepseekV3Config(**experts, q_lora_rank=7, v_head_dim=8, first_k_dense_replace=1), ids(11, 2, 4))
mixture("deepseek_v3_otherwise", DeepseekV3ForCausalLM,
        DeepseekV3Config(**(experts | dict(n_group=1, topk_group=1, num_experts_per_tok=2)), q_lora_rank=None, v_head_dim=12,
                         first_k_dense_replace=0, n_shared_experts=2, rope_interleave=False, attention_bias=True,
                         rope_parameters=yarn | {"mscale": 1.0, "mscale_all_dim": 0.8}), ids(11, 2, 5))

save_file(tensors, pathlib.Path(__file__).parent / "cases.safetensors", metadata=metadata)
