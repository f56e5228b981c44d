"""precompiled_header: a header that g++ has parsed before it compiles what includes it.

NAME.hh includes HDR, and NAME.hh.gch lies beside it, which g++ takes in its place where that was made
with the same options. Other compilers find an empty NAME.hh: they want formats and flags of their own,
and so see what a source forgets to include.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

_MAKE = """
set -e
hdr=$1 header=$2 precompiled=$3
shift 3
if "$1" -dM -E -x c++ /dev/null | grep -q __clang__; then
  : >"$header"
  : >"$precompiled"
else
  echo "#include \\"$hdr\\"" >"$header"
  exec "$@"
fi
"""

def _precompiled_header(ctx):
    header = ctx.actions.declare_file(ctx.label.name + ".hh")
    precompiled = ctx.actions.declare_file(ctx.label.name + ".hh.gch")
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    options = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts
    variables = cc_common.create_compile_variables(
        cc_toolchain = toolchain,
        feature_configuration = features,
        source_file = header.path,
        output_file = precompiled.path,
        use_pic = True,
        user_compile_flags = options,
        include_directories = context.includes,
        quote_include_directories = depset(["."], transitive = [context.quote_includes]),
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
    )
    command = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = variables,
    )
    compiler = cc_common.get_tool_for_action(feature_configuration = features, action_name = CPP_COMPILE_ACTION_NAME)
    ctx.actions.run_shell(
        mnemonic = "PrecompileHeader",
        command = _MAKE,
        arguments = [ctx.file.hdr.path, header.path, precompiled.path, compiler] + command,
        inputs = depset([ctx.file.hdr], transitive = [context.headers, toolchain.all_files]),
        outputs = [header, precompiled],
        use_default_shell_env = True,
    )

    # HDR too, for what is compiled with other options and so parses it.
    here = cc_common.create_compilation_context(headers = depset(
        [ctx.file.hdr, header, precompiled],
        transitive = [context.headers],
    ))
    return [DefaultInfo(files = depset([header, precompiled])), CcInfo(compilation_context = here)]

precompiled_header = rule(
    implementation = _precompiled_header,
    attrs = {
        "hdr": attr.label(mandatory = True, allow_single_file = [".h"]),
        "copts": attr.string_list(doc = "those of what includes it, which are otherwise in vain"),
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
