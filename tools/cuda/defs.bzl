"""CUDA in BUILD files: dt_cuda_library, and REQUIRES_CUDA for what depends on it."""

load("//tools:cc.bzl", "dt_library")
load("//tools/cuda:cuda_library.bzl", "cuda_library")

# For target_compatible_with: built with --config=cuda, otherwise skipped by wildcards.
REQUIRES_CUDA = select({
    "//tools/cuda:enabled": [],
    "//conditions:default": ["//tools/cuda:needs_config_cuda"],
})

def dt_cuda_library(name, srcs, hdrs = [], deps = [], copts = [], testonly = False, visibility = None, **kwargs):
    """A library of .cu sources that any dt_library may depend on; skipped without --config=cuda.

    Its headers are included as a dt_library's are; they must be plain C++, as others include them.

    Args:
      name: the library; `name_hdrs` is made beside it.
      srcs: .cu files, and .cuh files for them alone.
      hdrs: headers.
      deps: libraries. The CUDA runtime need not be named.
      copts: for nvcc.
      testonly: for helpers of tests.
      visibility: public if None.
      **kwargs: handed to cuda_library (tags, ...).
    """
    deps = deps + ["@local_cuda//:cudart"]
    dt_library(
        name = name + "_hdrs",
        hdrs = hdrs,
        target_compatible_with = REQUIRES_CUDA,
        testonly = testonly,
        visibility = ["//visibility:private"],
        deps = deps,
    )
    cuda_library(
        name = name,
        srcs = srcs,
        copts = copts,
        target_compatible_with = REQUIRES_CUDA,
        testonly = testonly,
        visibility = visibility or ["//visibility:public"],
        deps = deps + [":" + name + "_hdrs"],
        **kwargs
    )
