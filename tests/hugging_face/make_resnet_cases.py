"""Makes resnet_cases.safetensors: what Hugging Face's ResNet computes, in f64 on the CPU, at sizes of a few.

  $(bench/peers/setup transformers) tests/hugging_face/make_resnet_cases.py

Case c has c/result0, the logits in evaluation, and of one call in training c/result1, the logits, c/gradient/NAME of
parameters NAME (of the sum of the logits, each times formula("result", its index)) and c/after/NAME of running
statistics NAME. Parameters, statistics and pixel_values, as [batch, height, width, channels] and in the shape that
c/pixels has, are formula(NAME, index), variances 1 + formula / 2. The configuration is in the file's metadata.
"""

import json
import pathlib

import torch
import transformers
from formula import formula
from safetensors.torch import save_file
from transformers import ResNetConfig, ResNetForImageClassification

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
tensors = {}
metadata = {"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}"}


def case(name, shape, **config):
    labels = {"id2label": {i: f"label {i}" for i in range(5)}}
    model = ResNetForImageClassification(ResNetConfig(num_channels=2, embedding_size=6, **config, **labels)).double()
    stats = {path: x for path, x in model.named_buffers() if "running" in path}
    with torch.no_grad():
        for path, x in (dict(model.named_parameters()) | stats).items():
            values = formula(path, x.numel()).view_as(x)
            x.copy_(1 + values / 2 if path.endswith("running_var") else values)
    pixels = formula("pixel_values", shape.numel()).view(shape)
    images = pixels.permute(0, 3, 1, 2)
    evaluated = model.eval()(images).logits
    trained = model.train()(images).logits
    (trained * formula("result", trained.numel()).view_as(trained)).sum().backward()
    tensors[f"{name}/pixels"] = torch.tensor(shape)
    tensors[f"{name}/result0"] = evaluated
    tensors[f"{name}/result1"] = trained
    for path, x in model.named_parameters():
        tensors[f"{name}/gradient/{path}"] = x.grad
    for path, x in stats.items():
        tensors[f"{name}/after/{path}"] = x
    metadata[name] = json.dumps(model.config.to_dict())


case("bottleneck", torch.Size([3, 22, 17, 2]), hidden_sizes=[8, 12], depths=[1, 2])
case("bottleneck_first", torch.Size([2, 32, 16, 2]), hidden_sizes=[8, 8], depths=[2, 1], downsample_in_bottleneck=True,
     downsample_in_first_stage=True)
case("basic", torch.Size([2, 24, 17, 2]), hidden_sizes=[6, 7, 5], depths=[1, 2, 1], layer_type="basic")
save_file({name: x.detach().clone().contiguous() for name, x in tensors.items()},
          pathlib.Path(__file__).parent / "resnet_cases.safetensors", metadata=metadata)
