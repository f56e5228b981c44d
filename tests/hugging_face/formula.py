"""The numbers that the cases' parameters and operands are; the tests have the same formula."""

import torch

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
