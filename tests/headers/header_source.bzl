"""header_source: a source that includes every header that libraries are made of, each twice.

It asks for what the libraries depend on as they are configured: a query would also name the headers of
what is built with CUDA alone.
"""

def _include_path(header):
    """As what programs write: what follows _virtual_includes/NAME/, or the path in this repository."""
    marker = "/_virtual_includes/"
    at = header.path.find(marker)
    if at < 0:
        return header.short_path
    return header.path[at + len(marker):].split("/", 1)[1]

def _header_source_impl(ctx):
    paths = {}
    for dep in ctx.attr.deps:
        for header in dep[CcInfo].compilation_context.headers.to_list():
            path = _include_path(header)

            # Highway's parts are included for one instruction set after the other.
            if path.startswith("dtensor/") and not path.endswith("-inl.h"):
                paths[path] = None
    if not paths:
        fail("no header of ours among those of {}".format([dep.label for dep in ctx.attr.deps]))
    includes = ["#include \"{}\"\n".format(path) for path in sorted(paths)]
    ctx.actions.write(ctx.outputs.out, "".join(includes + includes))

header_source = rule(
    implementation = _header_source_impl,
    attrs = {
        "deps": attr.label_list(mandatory = True, providers = [CcInfo]),
        "out": attr.output(mandatory = True),
    },
)
