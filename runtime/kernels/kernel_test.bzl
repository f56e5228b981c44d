"""kernel_test: a test of kernels on host memory, and the same on a GPU."""

load("//tools:cc.bzl", "dt_test")
load("//tools/cuda:defs.bzl", "REQUIRES_CUDA", "REQUIRES_CUDNN", "REQUIRES_FAKES")

def kernel_test(name, deps = [], threads_meet = True, quick = None, sanitized = None, of_sm_80 = False):
    """Makes `name`_test and `name`_cuda_test of `name`_test.cc.

    Args:
      name: e.g. "softmax".
      deps: but for the kernels, the fixture and the devices.
      threads_meet: whether TSan sees the kernels for GPUs too (tag cuda_threads).
      quick: cases, as --gtest_filter has them, if all take long where a GPU is faked: `name`_cuda_test has
        those, and `name`_cuda_slow_test all.
      sanitized: what sanitizers run of the cases on a GPU, if that is not all; "" is nothing.
      of_sm_80: whether GPUs of capability 9.0 have kernels of their own; `name`_sm80_cuda_test has the others' too.
    """
    sanitizers = ["cuda_sanitize"] + (["cuda_threads"] if threads_meet else [])
    _test(name, "_test", None, ["sanitize"], deps)
    _test(name, "_cuda_test", quick, ["gpu"] + (sanitizers if sanitized == None else []), deps)
    if of_sm_80:
        _test(name, "_sm80_cuda_test", quick, ["gpu"] + (sanitizers if sanitized == None else []), deps, {"DTENSOR_TEST_CAPABILITY": "80"})
    if quick:
        _test(name, "_cuda_slow_test", None, ["gpu", "slow"], deps)
    if sanitized:
        _test(name, "_cuda_sanitized_test", sanitized, sanitizers, deps)

_ATTENTION_DEPS = [
    "//runtime/core:attention_mask",
    "//runtime/core:dims",
    "//runtime/core:dtype",
    "//runtime/core:index_set",
    "//runtime/device",
    "//runtime/testing:attention_case",
    "//runtime/testing:attention_steps",
    "//runtime/testing:kernel_devices",
    "//runtime/testing:reference_attention",
    "@com_google_absl//absl/algorithm:container",
    "@com_google_absl//absl/strings",
    "@highway//:hwy",
]

# Of two types: f32 and bf16.
_QUICK = "-*/1.*:*/3.*"

def attention_tests():
    """Makes the tests of attention's kernels."""
    kernel_test(
        name = "attention",
        quick = _QUICK,
        # Each kernel and kind of end of a tile.
        sanitized = "*/0.OddL*:*/1.Keys*:*/2.HeadS*:*/3.Grouped*:*.BitsAre*:*.NanIsKept",
        of_sm_80 = True,
        deps = _ATTENTION_DEPS + ["//runtime/device/meta"],
    )
    kernel_test(name = "attention_dropout", quick = _QUICK, sanitized = "", deps = _ATTENTION_DEPS)
    kernel_test(
        name = "attention_step",
        quick = _QUICK,
        sanitized = "",
        of_sm_80 = True,
        deps = _ATTENTION_DEPS + ["//runtime/testing:test_random"],
    )
    _cudnn_tests(_ATTENTION_DEPS)

def _cudnn_tests(deps):
    """attention_cudnn_test: of GPUs alone. Over fakes some of it also with a cuDNN that refuses f32, or all, or fails."""
    for refuses in ["", "none", "absent", "broken"]:
        dt_test(
            name = "attention_cudnn_{}test".format(refuses + "_" if refuses else ""),
            size = "medium",
            srcs = ["attention_cudnn_test.cc"],
            args = ["--gtest_filter=*/0.Wide*:*/1.Grouped*:*/0.ACarry*:*Failed*"] if refuses else [],
            env = {"DTENSOR_FAKE_CUDNN": refuses},
            tags = ["cuda_fake"] if refuses else ["gpu"],
            target_compatible_with = REQUIRES_FAKES if refuses else REQUIRES_CUDNN,
            deps = deps + [
                ":kernels",
                "//runtime/testing:cuda_kernel_devices",
                "//runtime/testing:status_matchers",
            ],
        )

def _test(name, suffix, cases, tags, deps, env = {}):
    on_gpu = suffix != "_test"
    dt_test(
        name = name + suffix,
        size = "medium",
        srcs = [name + "_test.cc"],
        args = ["--gtest_filter=" + cases] if cases else [],
        env = env,
        tags = tags,
        target_compatible_with = REQUIRES_CUDA if on_gpu else [],
        deps = [
            ":kernels",
            "//runtime/testing:kernel_fixture",
            "//runtime/testing:status_matchers",
            "//runtime/testing:cuda_kernel_devices" if on_gpu else "//runtime/testing:host_kernel_devices",
        ] + deps,
    )
