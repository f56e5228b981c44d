"""Makes image_cases.safetensors: what Hugging Face's models of images compute, in f64 on the CPU, at sizes of a few.

  $(bench/peers/setup transformers) tests/hugging_face/make_image_cases.py

Case c has c/result0, the logits in evaluation, and of one call in training c/result1, the logits, c/gradient/NAME of
parameters NAME (of the sum of the logits, each times formula("result", its index)) and c/after/NAME of running
statistics NAME. Parameters, statistics and pixel_values, as [batch, height, width, channels] and in the shape that
c/pixels has, are formula(NAME, index), variances 1 + formula / 2. The configuration is in the file's metadata. NAME is
that of saved files.
"""

import json
import pathlib
import tempfile

import torch
import transformers
from formula import formula
from safetensors.torch import load_file, save_file
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
tensors = {}
metadata = {"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}"}
labels = {"id2label": {i: f"label {i}" for i in range(5)}}


def by_saved_names(model):
    """Parameters and running statistics by the names that saved files have: those with the same random values."""
    held = dict(model.named_parameters()) | {path: x for path, x in model.named_buffers() if "running" in path}
    with torch.no_grad():
        for x in held.values():
            x.copy_(torch.rand_like(x))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = load_file(f"{folder}/model.safetensors")
    saved = {name: x for name, x in saved.items() if "num_batches_tracked" not in name}
    named = {name: next(y for y in held.values() if torch.equal(x, y)) for name, x in saved.items()}
    assert len({id(x) for x in named.values()}) == len(held)
    return named


def case(name, model, shape):
    model = model.double()
    named = by_saved_names(model)
    with torch.no_grad():
        for path, x in named.items():
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
    for path, x in named.items():
        tensors[f"{name}/gradient/{path}" if x.requires_grad else f"{name}/after/{path}"] = x.grad if x.requires_grad else x
    metadata[name] = json.dumps(model.config.to_dict())


def resnet(name, *shape, **config):
    config = ResNetConfig(num_channels=2, embedding_size=6, **config, **labels)
    case(name, ResNetForImageClassification(config), torch.Size(shape))


def vit(name, **config):
    config = ViTConfig(image_size=12, patch_size=4, num_channels=2, hidden_size=12, num_attention_heads=4,
                       intermediate_size=10, **config, **labels)
    case(name, ViTForImageClassification(config), torch.Size([3, 12, 12, 2]))


resnet("bottleneck", 3, 22, 17, 2, hidden_sizes=[8, 12], depths=[1, 2])
resnet("bottleneck_first", 2, 32, 16, 2, hidden_sizes=[8, 8], depths=[2, 1], downsample_in_bottleneck=True,
       downsample_in_first_stage=True)
resnet("basic", 2, 24, 17, 2, hidden_sizes=[6, 7, 5], depths=[1, 2, 1], layer_type="basic")
vit("vit", num_hidden_layers=2)
vit("vit_otherwise", num_hidden_layers=1, qkv_bias=False, hidden_act="gelu_new", layer_norm_eps=0.1)
save_file({name: x.detach().clone().contiguous() for name, x in tensors.items()},
          pathlib.Path(__file__).parent / "image_cases.safetensors", metadata=metadata)
