"""headers: all headers that libraries let others include, as files."""

def _headers_impl(ctx):
    files = depset(transitive = [dep[CcInfo].compilation_context.headers for dep in ctx.attr.deps])

    # Each once: not also as the link that an include path leads to, and none from outside.
    own = [f for f in files.to_list() if f.is_source and not f.owner.workspace_name]
    return [DefaultInfo(files = depset(own), runfiles = ctx.runfiles(files = own))]

headers = rule(
    implementation = _headers_impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)
