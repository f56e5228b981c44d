"""Makes cases.safetensors: what Hugging Face's models compute, in f64 on the CPU, at sizes of a few.

  $(bench/peers/setup transformers) tests/hugging_face/make_cases.py

Case c has c/operand0... (token ids), c/result0... and c/gradient/NAME of parameters NAME: of the sum of all results,
each number times formula("result0...", its index). Its parameters are formula(NAME, index) as well, and are not stored;
hugging_face_test.cc has the same formula. The configuration is in the file's metadata, under c, as the class wrote it,
beside the versions that made the file. Other versions, or another CPU, may make other last bits.
"""

import json
import pathlib

import torch
import transformers
from safetensors.torch import save_file
from transformers import (BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                          MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

tensors = {}
metadata = {"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}"}
MASK = 2**64 - 1


def formula(name, n):
    """n numbers in [-1, 1), exact in f32: SplitMix64 of an FNV-1a hash of the name."""
    hash = 0xCBF29CE484222325
    for byte in name.encode():
        hash = (hash ^ byte) * 0x100000001B3 & MASK
    values = []
    for i in range(n):
        z = hash + (i + 1) * 0x9E3779B97F4A7C15 & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        values.append(((z ^ z >> 31) >> 40) / 2**23 - 1)
    return torch.tensor(values)


def case(name, model, *operands, **more):
    """Of a model that is called with these token ids; `more`: operands with names. Gradients are stored of all
    parameters, or in a case NAME_otherwise of the first, the embedding, to which they come through all others.
    """
    model = model.double().eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.copy_(formula(path, parameter.numel()).view_as(parameter))
    outputs = model(*operands, **more)
    results = [outputs.logits] if "logits" in outputs else [outputs.last_hidden_state, outputs.pooler_output]
    loss = sum((y * formula(f"result{r}", y.numel()).view_as(y)).sum() for r, y in enumerate(results))
    loss.backward()
    stored = {f"operand{i}": x for i, x in enumerate([*operands, *more.values()])}
    stored |= {f"result{r}": y for r, y in enumerate(results)}
    gradients = {f"gradient/{path}": x.grad for path, x in model.named_parameters()}
    stored |= dict(list(gradients.items())[:1]) if "_otherwise" in name else gradients
    for part, x in stored.items():
        tensors[f"{name}/{part}"] = x.detach().clone().contiguous()
    metadata[name] = json.dumps(model.config.to_dict())


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
case("mistral_otherwise", MistralForCausalLM(MistralConfig(**llama, sliding_window=3)), ids(11, 2, 9))
case("qwen2_otherwise", Qwen2ForCausalLM(Qwen2Config(**llama, use_sliding_window=True, sliding_window=3, max_window_layers=1)),
     ids(11, 2, 9))
case("qwen3", Qwen3ForCausalLM(Qwen3Config(**llama, head_dim=6, tie_word_embeddings=True)), ids(11, 2, 5))

save_file(tensors, pathlib.Path(__file__).parent / "cases.safetensors", metadata=metadata)
