"""CUDA in BUILD files: dt_cuda_library, and REQUIRES_CUDA for what depends on it."""

load("//tools:cc.bzl", "dt_library")
load("//tools/cuda:cuda_library.bzl", "cuda_library")

# For target_compatible_with: built with --config=cuda, otherwise skipped by wildcards.
REQUIRES_CUDA = select({
    "//tools/cuda:enabled": [],
    "//conditions:default": ["//tools/cuda:needs_config_cuda"],
})

# The same for what needs cuDNN besides.
REQUIRES_CUDNN = select({
    "//tools/cuda:has_cudnn": [],
    "//conditions:default": ["//tools/cuda:needs_config_cuda"],
})

# For copts: what is defined in sources that know of kernels for GPUs.
HAS_CUDA = select({
    "//tools/cuda:enabled": ["-DDTENSOR_HAS_CUDA"],
    "//conditions:default": [],
})

# The same as REQUIRES_CUDA for what only one of the two compilers of kernels makes.
_REQUIRES_NVCC = select({
    "//tools/cuda:faked": ["//tools/cuda:needs_config_cuda"],
    "//tools/cuda:enabled": [],
    "//conditions:default": ["//tools/cuda:needs_config_cuda"],
})

# For what only fakes can show: as REQUIRES_CUDA where they take CUDA's place.
REQUIRES_FAKES = select({
    "//tools/cuda:faked": [],
    "//conditions:default": ["//tools/cuda:needs_config_cuda"],
})

def dt_cuda_library(name, srcs, hdrs = [], internal_hdrs = [], sm_90a_srcs = [], deps = [], testonly = False, visibility = None):
    """A library of kernels: .cu sources that nvcc compiles, or, where CUDA is faked, g++ over the host grid.

    Any dt_library may depend on it; skipped without --config=cuda. Its headers are included as a
    dt_library's are; they must be plain C++, as others include them.

    Args:
      name: the library; `name_hdrs`, `name_nvcc` and `name_host` are made beside it.
      srcs: .cu files. They include "dtensor/tools/cuda/kernel-inl.h".
      hdrs: headers.
      internal_hdrs: -inl.h files, for sources of kernels alone.
      sm_90a_srcs: those of srcs with instructions of capability 9.0 that newer GPUs do not have: where 90 is among
        --//tools/cuda:archs they are compiled for sm_90a, with DTENSOR_SM_90A defined, and their PTX without.
      deps: libraries. The CUDA runtime and kernel-inl.h need not be named.
      testonly: for helpers of tests.
      visibility: that of the package if None.
    """
    deps = deps + ["//tools/cuda:cudart", "//tools/cuda:kernel"]
    dt_library(
        name = name + "_hdrs",
        hdrs = hdrs + internal_hdrs,
        target_compatible_with = REQUIRES_CUDA,
        testonly = testonly,
        visibility = ["//visibility:private"],
        deps = deps,
    )
    cuda_library(
        name = name + "_nvcc",
        srcs = srcs,
        sm_90a_srcs = sm_90a_srcs,
        target_compatible_with = _REQUIRES_NVCC,
        testonly = testonly,
        visibility = ["//visibility:private"],
        deps = deps + [":" + name + "_hdrs"],
    )

    # g++ takes no .cu: each is included by a source that is made for it.
    sources = []
    for src in srcs:
        native.genrule(
            name = "{}_{}_source".format(name, src),
            outs = ["{}_host/{}.cc".format(name, src)],
            cmd = "echo '#include \"{}/{}\"' > $@".format(native.package_name(), src),
            target_compatible_with = REQUIRES_FAKES,
            testonly = testonly,
            visibility = ["//visibility:private"],
        )
        sources.append(":{}_{}_source".format(name, src))
    dt_library(
        name = name + "_host",
        srcs = sources,
        # nvcc assumes less of types than g++ does; its pragmas are its own.
        copts = ["-fno-strict-aliasing", "-Wno-unknown-pragmas"],
        target_compatible_with = REQUIRES_FAKES,
        testonly = testonly,
        textual_hdrs = srcs,
        visibility = ["//visibility:private"],
        deps = deps + [":" + name + "_hdrs"],
    )
    native.alias(
        name = name,
        actual = select({
            "//tools/cuda:faked": ":{}_host".format(name),
            "//conditions:default": ":{}_nvcc".format(name),
        }),
        visibility = visibility,
    )
