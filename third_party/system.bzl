"""system_repository: a Debian -dev package under the labels of its upstream project.

`@com_google_absl//absl/status:statusor` then means the system's library here and upstream's own in
an embedder's workspace, and the BUILD files are the same for both.
"""

def _missing(rctx, what):
    fail("@{}: {} was not found. Run tools/setup, or: apt-get install {}".format(
        rctx.name,
        what,
        rctx.attr.debian_package,
    ))

def _pkg_config(rctx, option, module):
    """The flags that pkg-config prints for `module`, as a list."""
    tool = rctx.which("pkg-config")
    if not tool:
        fail("@{}: there is no pkg-config. Run tools/setup, or: apt-get install pkg-config".format(rctx.name))
    result = rctx.execute([tool, option, module])
    if result.return_code != 0:
        _missing(rctx, "pkg-config module '{}'".format(module))
    return [flag for flag in result.stdout.strip().split(" ") if flag]

def _include_dirs(rctx, module):
    """Symlinks the module's header folders outside /usr/include into the repository: their names.

    Bazel accepts absolute header paths only below the compiler's own folders.
    """
    names = []
    for flag in _pkg_config(rctx, "--cflags-only-I", module):
        path = flag[2:]
        if path and path not in ["/usr/include", "/usr/local/include"]:
            name = "include_{}_{}".format(module, len(names))
            rctx.symlink(path, name)
            names.append(name)
    return names

def _library(rctx, package, target, module):
    linkopts, includes = [], []
    if module.startswith("-"):
        linkopts = module.split(" ")
    elif module:
        linkopts = _pkg_config(rctx, "--libs", module)
        if not package:
            includes = _include_dirs(rctx, module)
    return """
cc_library(
    name = {name},
    hdrs = {hdrs},
    defines = {defines},
    includes = {includes},
    linkopts = {linkopts},
)
""".format(
        name = repr(target),
        hdrs = "glob({}, allow_empty = False)".format([i + "/**/*.h" for i in includes]) if includes else "[]",
        defines = rctx.attr.defines,
        includes = includes,
        linkopts = linkopts,
    )

def _system_repository_impl(rctx):
    for header in rctx.attr.headers:
        if not rctx.path("/usr/include/" + header).exists:
            _missing(rctx, "the header " + header)
    packages = {}
    for label, module in rctx.attr.targets.items():
        package, target = label.split(":")
        packages.setdefault(package, []).append(_library(rctx, package, target, module))
    for package, libraries in packages.items():
        path = package + "/BUILD.bazel" if package else "BUILD.bazel"
        rctx.file(path, "package(default_visibility = [\"//visibility:public\"])\n" + "".join(libraries))

system_repository = repository_rule(
    implementation = _system_repository_impl,
    local = True,
    attrs = {
        "debian_package": attr.string(mandatory = True, doc = "named in the error when something is missing"),
        "defines": attr.string_list(),
        "headers": attr.string_list(doc = "must exist below /usr/include"),
        "targets": attr.string_dict(
            mandatory = True,
            doc = "'package:target' -> a pkg-config module, or linker flags, or '' for headers alone",
        ),
    },
)
