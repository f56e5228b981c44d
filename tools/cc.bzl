"""The rules that every first-party BUILD file uses: dt_library, dt_test, dt_binary and kin.

A header is included by the same path everywhere, here and in a program that embeds the library:
`dtensor/` and its path in this repository, where what stands in dtensor/ does not repeat the word.

    dtensor/layout/layout.h          #include "dtensor/layout/layout.h"
    runtime/core/dtype.h             #include "dtensor/runtime/core/dtype.h"
    parallel_plans/parallel_plan.h   #include "dtensor/parallel_plans/parallel_plan.h"
"""

_WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wno-sign-compare",
    # Designated initializers leave out what has a default.
    "-Wno-missing-field-initializers",
    # g++ 12 reports these about sound code once std::string or StatusOr is inlined.
    "-Wno-array-bounds",
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
    "-Wno-restrict",
    "-Wno-stringop-overflow",
    "-Wno-stringop-overread",
    # clang knows some of the names above under none.
    "-Wno-unknown-warning-option",
]

# No bazelrc has to say it: neither here nor in a workspace that uses this one.
_CXX = ["-std=c++20"]

# What a careful user compiles with: no header of ours may warn, or need exceptions or RTTI.
USER_COPTS = _CXX + [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-exceptions",
    "-fno-rtti",
]

def _is_ours():
    return native.repository_name() == "@"

def library_copts():
    """What all sources are compiled with."""

    # An embedder's compiler may be newer than ours, and warn of more.
    return _CXX + _WARNINGS + (select({
        "//tools:werror_off": [],
        "//conditions:default": ["-Werror"],
    }) if _is_ours() else [])

# Less time to compile (CONTRIBUTING.md): g++ parses what most sources include once, for all of them, and
# does not look for garbage below 2 GB (the number is KiB), which clang knows nothing of. Not in another
# workspace, whose flags and memory we do not know.
def _sooner(precompiled):
    return [
        "-include",
        precompiled,
        "--param=ggc-min-heapsize=2000000",
        "-Wno-unused-command-line-argument",
    ] if _is_ours() else []

def _precompiled(target):
    return [target] if _is_ours() else []

def _copts(more):
    return library_copts() + _sooner("tools/precompiled/library.hh") + more

def _deps(more):
    return more + _precompiled("//tools/precompiled:library")

# A test's own source runs for less long than it takes to be optimized; what computes much for tests is a
# library, and is. What is precompiled for it must be compiled as it is.
TEST_OPTIMIZATION = ["-O0"]

def _test_copts(more):
    return library_copts() + TEST_OPTIMIZATION + _sooner("tools/precompiled/test.hh") + more

def _test_deps(more):
    return more + _precompiled("//tools/precompiled:test")

def _include_prefix():
    package = native.package_name()
    if package == "dtensor" or package.startswith("dtensor/"):
        return None
    return "dtensor/" + package if package else "dtensor"

def _header_test(name, hdrs, srcs, testonly, **kwargs):
    """One library with a source for each header, which includes that header twice and nothing else.

    Not for headers that a source of the same name includes first, which CMake compiles without anything
    precompiled; all that are installed are compiled together, as strictly, by tests/headers.

    It is compiled as a user's own program would be, so our leave to ignore some warnings does not count.
    Left out of ordinary builds by its tag; `bazel build --config=header_tests //...` builds them all.
    """
    prefix = _include_prefix() or native.package_name()
    names = [hdr.lstrip(":") for hdr in hdrs]
    tried = srcs if type(srcs) == "list" and not testonly else []  # a select is none
    alone = [
        hdr
        for hdr in names
        # Not ours to compile alone: another package's, and Highway's parts that are included per target.
        if ":" not in hdr and not hdr.startswith("//") and not hdr.endswith("-inl.h") and
           hdr[:-len("h")] + "cc" not in tried
    ]
    if not alone:
        return
    alone_srcs = ["{}_header_test/{}.cc".format(name, hdr) for hdr in alone]
    native.genrule(
        name = name + "_header_test_srcs",
        outs = alone_srcs,
        cmd = " && ".join([
            "printf '#include \"%s\"\\n#include \"%s\"\\n' {0} {0} > $(RULEDIR)/{1}".format(prefix + "/" + hdr, src)
            for hdr, src in zip(alone, alone_srcs)
        ]),
        tags = ["header_test"],
        testonly = testonly,
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name + "_header_test",
        srcs = alone_srcs,
        # Whether it compiles is all we ask.
        copts = USER_COPTS + ["-O0"],
        linkstatic = True,
        tags = ["header_test"],
        testonly = testonly,
        visibility = ["//visibility:private"],
        deps = [":" + name],
        **kwargs
    )

def dt_library(
        name,
        hdrs = [],
        internal_hdrs = [],
        srcs = [],
        deps = [],
        copts = [],
        visibility = None,
        testonly = None,
        **kwargs):
    """A cc_library with our warnings, our include paths and a header test; private to its room unless told otherwise.

    Args:
      name: as in cc_library; so are hdrs, srcs, deps and testonly. `name_header_test` is made beside it.
      hdrs: compiled alone by the header test, but for `*-inl.h` and those whose source in srcs does it.
      internal_hdrs: hdrs that are not for users, and that CMake does not install: of this library and tests.
      srcs: sources; in dtensor/ also headers that no other target may include. (Elsewhere they would lack
        the include path, and are internal_hdrs.)
      deps: libraries.
      copts: after ours.
      visibility: that of the package if None, which is private.
      testonly: for helpers of tests; that of the package if None.
      **kwargs: handed to cc_library (textual_hdrs, tags, linkopts, target_compatible_with, ...).
    """
    if internal_hdrs:
        # A target that is not public, by which //cmake tells them from the others. tools/check_deps takes it for
        # a part of the library, whose deps it has.
        native.cc_library(
            name = name + "_internal_hdrs",
            hdrs = internal_hdrs,
            include_prefix = _include_prefix(),
            testonly = testonly,
            visibility = ["//visibility:private"],
        )
        deps = deps + [":{}_internal_hdrs".format(name)]
    native.cc_library(
        name = name,
        hdrs = hdrs,
        srcs = srcs,
        copts = _copts(copts),
        include_prefix = _include_prefix(),
        linkstatic = True,
        testonly = testonly,
        visibility = visibility,
        deps = _deps(deps + (["//runtime/core:export"] if name != "export" else [])),
        **kwargs
    )
    _header_test(
        name = name,
        hdrs = hdrs + internal_hdrs,
        srcs = srcs,
        testonly = testonly,
        target_compatible_with = kwargs.get("target_compatible_with", []),
    )

def dt_binary(name, srcs = [], deps = [], copts = [], **kwargs):
    """A cc_binary with our warnings."""
    native.cc_binary(
        name = name,
        srcs = srcs,
        copts = _copts(copts),
        deps = _deps(deps + ["//tools/sanitizers:suppressions"]),
        **kwargs
    )

def dt_benchmark(name, srcs, deps = [], **kwargs):
    """A Google Benchmark program. Run, never tested: a timed test fails on a busy machine."""
    dt_binary(
        name = name,
        testonly = True,
        srcs = srcs,
        deps = deps + ["@com_github_google_benchmark//:benchmark_main"],
        **kwargs
    )

def dt_test(name, srcs, deps = [], size = "small", tags = [], copts = [], with_mpi = False, **kwargs):
    """A GoogleTest program (gmock and main are linked), with our warnings.

    Tags with a meaning: `slow` and `gpu` are left out of the default run (a `gpu` test, which
    --config=cuda runs, skips itself where there is no GPU, which fails under --config=gpu); `sanitize` is run under ASan and UBSan by
    .ci/run, `threads`, where threads meet, under TSan; `exclusive` runs alone; `cpu:2` reserves two cores,
    and `cpu:1024` all (MPIRUN_TAGS).

    Args:
      name: as in cc_test; so are srcs, size and tags.
      srcs: sources.
      deps: libraries; GoogleTest need not be named.
      size: bounds the time: small is one minute, medium five.
      tags: see above.
      copts: after ours.
      with_mpi: makes X_with_mpi of X, the same program as one that sends by MPI where it is a process's rank.
      **kwargs: handed to cc_test (data, shard_count, target_compatible_with, ...).
    """
    if with_mpi:
        native.cc_library(
            name = name + "_cases",
            srcs = srcs,
            data = kwargs.get("data"),
            copts = _test_copts(copts),
            alwayslink = True,
            linkstatic = True,
            testonly = True,
            deps = _test_deps(deps + ["@com_google_googletest//:gtest"]),
        )
        dt_binary(
            name = name + "_with_mpi",
            testonly = True,
            visibility = kwargs.get("visibility"),
            deps = [
                ":{}_cases".format(name),
                "//dtensor/mpi",
                "@com_google_googletest//:gtest_main",
            ],
        )
        srcs = []
        deps = [":{}_cases".format(name)]
    native.cc_test(
        name = name,
        size = size,
        srcs = srcs,
        copts = _test_copts(copts),
        tags = tags,
        deps = _test_deps(deps + [
            "//tools/sanitizers:suppressions",
            "@com_google_googletest//:gtest_main",
        ] + (["//tools/cuda:require_gpu"] if "gpu" in tags else [])),
        **kwargs
    )

def dt_test_with_slow_cases(name, size = "small", slow_size = "large", tags = [], with_mpi = False, **kwargs):
    """A dt_test without the cases of suites called *Slow*, and a slow test that has these alone.

    Args:
      name: X_test; the other is called X_slow_test.
      size: of the first.
      slow_size: of the other.
      tags: of both, but for `sanitize` and `threads`, which the first alone has.
      with_mpi: as in dt_test, of the first.
      **kwargs: handed to both.
    """
    dt_test(
        name = name,
        size = size,
        args = ["--gtest_filter=-*.Slow*"],
        tags = tags,
        with_mpi = with_mpi,
        **kwargs
    )
    dt_test(
        name = name[:-len("_test")] + "_slow_test",
        size = slow_size,
        args = ["--gtest_filter=*.Slow*"],
        tags = [tag for tag in tags if tag not in ("sanitize", "threads")] + ["slow"],
        **kwargs
    )

# Of tests that call mpirun: none runs beside another, however many cores there are. In sandboxes each
# mpirun has the same process id, and so the same ports, and names for memory that ranks share.
MPIRUN_TAGS = ["cpu:1024"]

def dt_mpi_test(name, ranks, srcs, deps = [], size = "small", tags = [], args = [], **kwargs):
    """A program that runs as `ranks` processes under mpirun; passes when all of them exit with 0."""
    dt_binary(
        name = name + "_rank",
        testonly = True,
        srcs = srcs,
        deps = deps + ["@openmpi//:mpi"],
        **kwargs
    )
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//tools:mpirun.sh"],
        args = [
            str(ranks),
            "$(rootpath :{}_rank)".format(name),
        ] + args,
        data = [":{}_rank".format(name)],
        tags = tags + MPIRUN_TAGS,
        target_compatible_with = kwargs.get("target_compatible_with", []),
    )
