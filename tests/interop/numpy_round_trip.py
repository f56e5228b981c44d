"""NumPy arrays to our tensors and back, in one memory: numpy_round_trip.py dlpack_shim.so"""

import gc
import sys
import unittest
import weakref

import numpy as np

from dlpack_shim import Shim

shim = Shim(sys.argv.pop())

# NumPy 1.24 has no DLPack version, and tells bool as uint8; neither has bf16 (bench/peers/dlpack.py).
HAS_VERSIONS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
TYPES = ["float32", "float64", "float16", "int32", "int64"] + (["bool"] if HAS_VERSIONS else [])


def arrays(dtype):
    dense = np.arange(24).reshape(2, 3, 4).astype(dtype)
    yield from {
        "dense": dense,
        "transposed": dense.transpose(2, 0, 1),
        "strided": dense[:, ::2, 1::2],
        "from an offset": dense[1, 1:],
        "a column": dense[:, 0, 0],
        "a scalar": np.array(3).astype(dtype),
        "of size 1": dense[:1, :, :1],
        "empty": np.zeros((2, 0, 3), dtype),
        "emptied": dense[:, 3:],
        "Fortran's": np.asfortranarray(dense),
    }.items()


class RoundTrip(unittest.TestCase):
    def comes_back(self, array, version):
        back = np.from_dlpack(shim.from_dlpack(array, version))
        self.assertEqual(back.dtype, array.dtype)
        self.assertEqual(back.shape, array.shape)
        np.testing.assert_array_equal(back, array)
        if array.size:
            self.assertEqual(back.ctypes.data, array.ctypes.data)
            self.assertTrue(all(n == 1 or a == b for n, a, b in zip(array.shape, back.strides, array.strides)))

    def test_comes_back_as_the_same_memory(self):
        for dtype in TYPES:
            for name, array in arrays(dtype):
                for version in [None, (1, 1)] if HAS_VERSIONS else [None]:
                    with self.subTest(dtype=dtype, array=name, version=version):
                        self.comes_back(array, version)

    def test_a_view_of_ours_is_a_view_there(self):
        array = np.arange(6, dtype="float32").reshape(2, 3)
        back = np.from_dlpack(shim.from_dlpack(array).transpose(0, 1))
        np.testing.assert_array_equal(back, array.T)
        self.assertTrue(np.shares_memory(back, array))

    def test_writes_are_seen(self):
        array = np.zeros(3, "int64")
        ours = shim.from_dlpack(array)
        array[1] = 7
        self.assertEqual(str(ours), "[3] i64 on cpu\n[0 7 0]")
        back = np.from_dlpack(ours)
        if back.flags.writeable:
            back[2] = 9
            self.assertEqual(array.tolist(), [0, 7, 9])

    def test_ours_keeps_theirs_alive_and_gives_it_back(self):
        array = np.arange(4, dtype="float64")
        gone = weakref.ref(array)
        ours = shim.from_dlpack(array)
        del array
        gc.collect()
        self.assertIsNotNone(gone())
        self.assertEqual(str(ours), "[4] f64 on cpu\n[0 1 2 3]")
        del ours
        gc.collect()
        self.assertIsNone(gone())

    def test_theirs_keeps_ours_alive_and_gives_it_back(self):
        array = np.arange(4, dtype="float64")
        gone = weakref.ref(array)
        back = np.from_dlpack(shim.from_dlpack(array))
        again = np.from_dlpack(shim.from_dlpack(array))
        del array, again
        gc.collect()
        self.assertEqual(back.tolist(), [0, 1, 2, 3])
        self.assertEqual(shim.tensors(), 1)
        del back
        gc.collect()
        self.assertIsNone(gone())
        self.assertEqual(shim.tensors(), 0)

    def test_a_capsule_that_nobody_takes_is_given_back(self):
        ours = shim.from_dlpack(np.zeros(2))
        for version in [None, (1, 0)]:
            capsule = ours.__dlpack__(max_version=version)
            self.assertEqual(type(capsule).__name__, "PyCapsule")
        del ours, capsule
        gc.collect()
        self.assertEqual(shim.tensors(), 0)

    def test_what_tensors_cannot_hold_is_refused_and_given_back(self):
        array = np.arange(4, dtype="float32")
        before = sys.getrefcount(array)
        with self.assertRaisesRegex(ValueError, "go backwards.*copy the tensor first"):
            shim.from_dlpack(array[::-1])
        with self.assertRaisesRegex(ValueError, "convert it to f32"):
            shim.from_dlpack(array.view("uint32"))
        with self.assertRaisesRegex(ValueError, "one place in memory"):
            shim.from_dlpack(np.lib.stride_tricks.as_strided(array, (3, 2), (4, 4)))
        self.assertEqual(sys.getrefcount(array), before)
        self.assertEqual(shim.tensors(), 0)

    @unittest.skipUnless(HAS_VERSIONS, "before versions, read-only memory cannot be told, and NumPy refuses")
    def test_read_only_memory_is_copied_before_a_write(self):
        array = np.arange(3, dtype="float32")
        array.flags.writeable = False
        ours = shim.from_dlpack(array)
        self.assertEqual(ours.data(), array.ctypes.data)
        self.assertTrue(ours.before_write())
        self.assertNotEqual(ours.data(), array.ctypes.data)
        self.assertEqual(str(ours), "[3] f32 on cpu\n[0 1 2]")


if __name__ == "__main__":
    print("NumPy", np.__version__)
    unittest.main(verbosity=2)
