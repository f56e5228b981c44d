"""PyTorch's tensors to ours and back, in one memory. It measures nothing: it fails where a round trip does.

  bazel build //tests/interop:dlpack_shim.so && $(bench/peers/setup) bench/peers/dlpack.py

NumPy's are in //tests/interop:numpy_test; this has bf16, bool, broadcasts and storages of PyTorch's besides.
"""

import gc
import pathlib
import sys
import unittest
import weakref

import numpy as np
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.append(str(ROOT / "tests/interop"))
from dlpack_shim import Shim  # noqa: E402

shim = Shim(str(ROOT / "bazel-bin/tests/interop/dlpack_shim.so"))

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool]


def tensors(dtype):
    dense = torch.arange(24).reshape(2, 3, 4).to(dtype)
    return {
        "dense": dense,
        "permuted": dense.permute(2, 0, 1),
        "strided": dense[:, ::2, 1::2],
        "from an offset": dense[1, 1:],
        "broadcast": dense[:, :1].expand(2, 5, 4),
        "a scalar": torch.tensor(3).to(dtype),
        "an element": dense[1, 2, 3],
        "of size 1": dense[:1, :, :1],
        "empty": torch.zeros(2, 0, 3, dtype=dtype),
        "emptied": dense[:, 3:],
    }


class RoundTrip(unittest.TestCase):
    def comes_back(self, tensor, version):
        ours = shim.from_dlpack(tensor, version)
        back = torch.from_dlpack(ours)
        self.assertEqual(back.dtype, tensor.dtype)
        self.assertTrue(torch.equal(back, tensor))
        if tensor.numel():
            self.assertEqual(back.data_ptr(), tensor.data_ptr())
            self.assertEqual([s for s, n in zip(back.stride(), back.shape) if n > 1],
                             [s for s, n in zip(tensor.stride(), tensor.shape) if n > 1])

    def test_comes_back_as_the_same_memory(self):
        for dtype in TYPES:
            for name, tensor in tensors(dtype).items():
                for version in [None, (1, 1)]:
                    with self.subTest(dtype=dtype, tensor=name, version=version):
                        self.comes_back(tensor, version)

    def test_bf16_is_read_as_it_is(self):
        ours = shim.from_dlpack(torch.tensor([1.5, -0.25, float("inf")], dtype=torch.bfloat16))
        self.assertEqual(str(ours), "[3] bf16 on cpu\n[  1.5 -0.25   inf]")

    def test_writes_are_seen_on_both_sides(self):
        tensor = torch.zeros(3)
        ours = shim.from_dlpack(tensor)
        tensor[1] = 7
        self.assertEqual(str(ours), "[3] f32 on cpu\n[0 7 0]")
        torch.from_dlpack(ours).add_(1)
        self.assertEqual(tensor.tolist(), [1, 8, 1])

    def test_memory_lives_as_long_as_anybody_has_it(self):
        array = np.arange(4.0)
        gone = weakref.ref(array)
        ours = shim.from_dlpack(torch.from_numpy(array))
        back = torch.from_dlpack(ours).mul_(2)
        del array, ours
        gc.collect()
        self.assertIsNotNone(gone())
        self.assertEqual(back.tolist(), [0, 2, 4, 6])
        del back
        gc.collect()
        self.assertIsNone(gone())
        self.assertEqual(shim.tensors(), 0)

    def test_what_is_refused_is_given_back(self):
        array = np.arange(4.0)
        gone = weakref.ref(array)
        with self.assertRaisesRegex(ValueError, "convert it"):
            shim.from_dlpack(torch.from_numpy(array).view(torch.complex128))
        del array
        gc.collect()
        self.assertIsNone(gone())

    def test_between_numpy_and_torch_by_way_of_ours(self):
        tensor = torch.arange(6.0).reshape(2, 3)
        array = np.from_dlpack(shim.from_dlpack(tensor).transpose(0, 1))
        self.assertEqual(array.tolist(), tensor.T.tolist())
        self.assertEqual(array.ctypes.data, tensor.data_ptr())


if __name__ == "__main__":
    print("PyTorch", torch.__version__, "NumPy", np.__version__)
    unittest.main(verbosity=2)
