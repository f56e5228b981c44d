"""What Bazel 4 would fetch from the network for every build, from the disk.

Debian's bazel-bootstrap has no network to rely on: its sister packages bring some of the rules that
Bazel names, and folders of bazel_stubs/ stand in for the rest.
"""

_DEBIAN = {
    "platforms": "/usr/share/bazel/tools/platforms",
    "rules_java": "/usr/share/bazel/rules/java",
    "rules_proto": "/usr/share/bazel/rules/proto",
}

_STUBS = ["rules_cc", "remote_coverage_tools"]

def _stub_repository_impl(rctx):
    for entry in rctx.path(rctx.attr.workspace_file).dirname.readdir():
        rctx.symlink(entry, entry.basename)

# A local_repository's path begins at the main workspace; this one's label begins here.
_stub_repository = repository_rule(
    implementation = _stub_repository_impl,
    local = True,
    attrs = {"workspace_file": attr.label(mandatory = True)},
)

def bazel_stubs():
    """Declares those that the workspace does not have yet."""
    for name, path in _DEBIAN.items():
        if not native.existing_rule(name):
            native.local_repository(name = name, path = path)
    for name in _STUBS:
        if not native.existing_rule(name):
            _stub_repository(
                name = name,
                workspace_file = Label("//third_party/bazel_stubs/%s:WORKSPACE" % name),
            )
