"""The external repositories that dtensor's BUILD files name, for this workspace and for yours.

    local_repository(name = "dtensor", path = "../dtensor")

    load("@dtensor//:deps.bzl", "dtensor_workspace")

    dtensor_workspace()

takes everything from Debian 12's packages (tools/setup installs them) and opens no connection. What
your workspace has declared before is left alone: its Abseil, its rules_cc. Whoever has all of it
calls dtensor_dependencies() alone.
"""

load("//third_party:bazel_stubs.bzl", "bazel_stubs")
load("//third_party:system.bzl", "system_repository")
load("//tools/cuda:cuda_configure.bzl", "cuda_configure")

_ABSL = {
    "absl/algorithm:algorithm": "absl_algorithm",
    "absl/algorithm:container": "absl_algorithm_container",
    "absl/base:core_headers": "absl_core_headers",
    "absl/cleanup:cleanup": "absl_cleanup",
    "absl/container:btree": "absl_btree",
    "absl/container:fixed_array": "absl_fixed_array",
    "absl/container:flat_hash_map": "absl_flat_hash_map",
    "absl/container:flat_hash_set": "absl_flat_hash_set",
    "absl/container:inlined_vector": "absl_inlined_vector",
    "absl/functional:any_invocable": "absl_any_invocable",
    "absl/functional:function_ref": "absl_function_ref",
    "absl/hash:hash": "absl_hash",
    "absl/memory:memory": "absl_memory",
    "absl/meta:type_traits": "absl_type_traits",
    "absl/numeric:bits": "absl_bits",
    "absl/numeric:int128": "absl_int128",
    "absl/status:status": "absl_status",
    "absl/status:statusor": "absl_statusor",
    "absl/strings:str_format": "absl_str_format",
    "absl/strings:strings": "absl_strings",
    "absl/types:span": "absl_span",
    "absl/utility:utility": "absl_utility",
}

def dtensor_workspace():
    """All that a build needs, from this machine's disk."""
    bazel_stubs()
    dtensor_dependencies()
    dtensor_system_dependencies()

def dtensor_dependencies():
    """What every build needs and no package manager offers: the CUDA toolkit, where there is one."""
    if not native.existing_rule("local_cuda"):
        cuda_configure(name = "local_cuda")

def _system(name, **kwargs):
    if not native.existing_rule(name):
        system_repository(name = name, **kwargs)

def dtensor_system_dependencies():
    """The rest, from Debian's -dev packages (tools/setup installs them)."""
    _system(
        name = "com_google_absl",
        debian_package = "libabsl-dev",
        targets = _ABSL,
    )
    _system(
        name = "com_google_googletest",
        debian_package = "libgtest-dev libgmock-dev",
        targets = {
            ":gtest": "gmock",
            ":gtest_main": "gmock_main",
        },
    )
    _system(
        name = "com_github_google_benchmark",
        debian_package = "libbenchmark-dev",
        targets = {
            ":benchmark": "benchmark",
            ":benchmark_main": "-lbenchmark_main -lbenchmark -lpthread",
        },
    )
    _system(
        name = "onednn",
        debian_package = "libdnnl-dev",
        headers = ["dnnl.hpp"],
        targets = {":onednn": "-ldnnl"},
    )
    _system(
        name = "highway",
        debian_package = "libhwy-dev",
        # Debian ships Highway as a shared library only.
        defines = ["HWY_SHARED_DEFINE"],
        headers = ["hwy/highway.h"],
        targets = {":hwy": "libhwy"},
    )
    _system(
        name = "nlohmann_json",
        debian_package = "nlohmann-json3-dev",
        headers = ["nlohmann/json.hpp"],
        targets = {":json": ""},
    )
    _system(
        name = "cli11",
        debian_package = "libcli11-dev",
        headers = ["CLI/CLI.hpp"],
        targets = {":cli11": ""},
    )
    _system(
        name = "openssl",
        debian_package = "libssl-dev",
        headers = ["openssl/hmac.h"],
        targets = {":crypto": "libcrypto"},
    )
    _system(
        name = "openmpi",
        debian_package = "libopenmpi-dev",
        # The C++ bindings left MPI in version 3.0; their header only costs compile time.
        defines = ["OMPI_SKIP_MPICXX"],
        targets = {":mpi": "mpi"},
    )
