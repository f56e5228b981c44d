"""Makes peft/: an adapter as Hugging Face's PEFT saves it, and what the model with it computes, in f64 on the CPU.

  $(bench/peers/setup peft) tests/hugging_face/make_peft_case.py

The model is that of case "llama" in cases.safetensors' script, smaller: its parameters are formula(NAME, index), and so are
the adapter's. peft/adapter_config.json and peft/adapter_model.safetensors are PEFT's; peft/case.safetensors has operand0
(token ids), result0 (logits), and gradient/NAME of the adapter's parameters, by the names in PEFT's file: of the sum of
all logits, each times formula("result0", its index). The configuration of the model is in its metadata, under "config".
"""

import json
import pathlib

import peft
import torch
import transformers
from formula import formula
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
folder = pathlib.Path(__file__).parent / "peft"

config = transformers.LlamaConfig(vocab_size=11, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
                                  num_key_value_heads=2, intermediate_size=20, attention_bias=True)
model = transformers.LlamaForCausalLM(config)
with torch.no_grad():
    for name, x in model.named_parameters():
        x.copy_(formula(name, x.numel()).reshape(x.shape))
adapted = peft.get_peft_model(model, peft.LoraConfig(r=3, lora_alpha=7, lora_dropout=0.25, use_rslora=True,
                                                     target_modules=["q_proj", "v_proj", "down_proj"]))
adapted.eval()
# Saved names lack the adapter's own, which is "default".
adapters = {name.replace(".default.", "."): x for name, x in adapted.named_parameters() if x.requires_grad}
with torch.no_grad():
    for name, x in adapters.items():
        x.copy_(formula(name, x.numel()).reshape(x.shape))
ids = (torch.arange(10) * 7 % 11).reshape(2, 5)
logits = adapted(ids).logits
(logits.flatten() * formula("result0", logits.numel())).sum().backward()

adapted.save_pretrained(folder)
(folder / "README.md").unlink()
assert set(load_file(folder / "adapter_model.safetensors")) == set(adapters)
tensors = {"operand0": ids, "result0": logits.detach()} | {f"gradient/{name}": x.grad for name, x in adapters.items()}
versions = f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}"
save_file({name: x.contiguous() for name, x in tensors.items()}, folder / "case.safetensors",
          metadata={"config": json.dumps(config.to_dict()), "made_by": versions})
