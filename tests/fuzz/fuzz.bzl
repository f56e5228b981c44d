"""fuzz_target: a program that tries inputs, and its test."""

load("//tools:cc.bzl", "dt_binary")

def fuzz_target(name, deps, longest = 4096):
    """Of the source NAME.cc, which defines dtensor::fuzz::Try, and the inputs in seeds/NAME.

    Makes NAME, a libFuzzer program under --config=fuzz, and NAME_test (fuzz_test.sh).

    Args:
      name: of the program; also of its source and seeds.
      deps: libraries; :fuzz need not be named.
      longest: the longest input that libFuzzer makes, in bytes.
    """
    dt_binary(
        name = name,
        testonly = True,
        srcs = [name + ".cc"],
        linkopts = select({
            ":fuzzing": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        deps = deps + [":fuzz"] + select({
            ":fuzzing": [":libfuzzer_entry"],
            "//conditions:default": [":kept_inputs_main"],
        }),
    )
    native.sh_test(
        name = name + "_test",
        size = "medium",
        srcs = ["fuzz_test.sh"],
        args = [
            "$(rootpath :{})".format(name),
            "{}/seeds/{}".format(native.package_name(), name),
            "$(rootpath words.dict)",
            str(longest),
        ],
        data = [
            "words.dict",
            ":" + name,
        ] + native.glob(["seeds/{}/*".format(name)]),
    )
