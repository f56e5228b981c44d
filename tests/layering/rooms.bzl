"""The rooms, and the arrows between them."""

# What the libraries of a room may use directly, beside their own room; tests may look further. A
# room is a folder, without the folders in it. Rooms called testing are missing, so no library may use
# them. Bazel, too, keeps what is testonly out of libraries; what the command line checks its runs
# with is not, and only this list keeps that out.
ROOMS = {
    "dtensor": [
        "dtensor/attention",
        "dtensor/layout",
        "dtensor/ops",
        "dtensor/redistribution",
        "dtensor/rules",
        "dtensor/tensor",
        "runtime/core",
    ],
    "dtensor/attention": [
        "dtensor/layout",
        "dtensor/redistribution",
        "dtensor/rules",
        "dtensor/tensor",
        "runtime/comm",
        "runtime/core",
        "runtime/device",
        "runtime/kernels",
    ],
    "dtensor/layout": ["runtime/core"],
    "dtensor/nn": [
        "dtensor/attention",
        "dtensor/layout",
        "dtensor/ops",
        "dtensor/tensor",
        "runtime/core",
        "runtime/device",
        "runtime/kernels",
    ],
    "dtensor/ops": [
        "dtensor/attention",
        "dtensor/layout",
        "dtensor/rules",
        "dtensor/tensor",
        "runtime/core",
        "runtime/device",
        "runtime/kernels",
    ],
    "dtensor/redistribution": [
        "dtensor/layout",
        "runtime/comm",
        "runtime/core",
        "runtime/device",
        "runtime/kernels",
    ],
    "dtensor/rules": [
        "dtensor/layout",
        "runtime/core",
    ],
    "dtensor/tensor": [
        "dtensor/layout",
        "dtensor/redistribution",
        "dtensor/rules",
        "runtime/comm",
        "runtime/comm/local",
        "runtime/core",
        "runtime/device",
        "runtime/kernels",
    ],
    "parallel_plans": [
        "dtensor/attention",
        "dtensor/layout",
        "dtensor/nn",
        "dtensor/ops",
        "dtensor/tensor",
        "runtime/core",
    ],
    "runtime": [
        "runtime/comm",
        "runtime/comm/local",
        "runtime/comm/simulated",
        "runtime/core",
        "runtime/device",
        "runtime/device/cpu",
        "runtime/device/cuda",
        "runtime/device/deferred",
        "runtime/device/meta",
        "runtime/io",
        "runtime/kernels",
    ],
    "runtime/comm": [
        "runtime/core",
        "runtime/device",
        "runtime/kernels",
    ],
    "runtime/comm/local": [
        "runtime/comm",
        "runtime/comm/simulated",
        "runtime/core",
        "runtime/device",
        "runtime/device/cpu",
        "runtime/device/deferred",
        "runtime/device/meta",
        "runtime/kernels",
    ],
    "runtime/comm/simulated": [
        "runtime/comm",
        "runtime/core",
        "runtime/device",
    ],
    "runtime/core": [],
    "runtime/device": ["runtime/core"],
    "runtime/device/cpu": [
        "runtime/core",
        "runtime/device",
        "runtime/device/host",
    ],
    "runtime/device/cuda": [
        "runtime/core",
        "runtime/device",
    ],
    "runtime/device/deferred": [
        "runtime/core",
        "runtime/device",
        "runtime/device/host",
    ],
    "runtime/device/host": [
        "runtime/core",
        "runtime/device",
    ],
    "runtime/device/meta": [
        "runtime/core",
        "runtime/device",
    ],
    "runtime/io": ["runtime/core"],
    "runtime/kernels": [
        "runtime/core",
        "runtime/device",
        "runtime/kernels/arguments",
        "runtime/kernels/cpu",
    ],
    "runtime/kernels/arguments": [
        "runtime/core",
        "runtime/device",
    ],
    # A contract knows its devices' kernels, and no device's kernels know a contract.
    "runtime/kernels/cpu": [
        "runtime/core",
        "runtime/device",
        "runtime/kernels/arguments",
    ],
}
