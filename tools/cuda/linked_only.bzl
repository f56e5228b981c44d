"""linked_only: libraries that others link and do not compile with.

Whatever depends on a library is compiled with all headers that it can see. CUDA's would be among those of
nearly every source, so that each was compiled once more under --config=cuda; without them it is the object of
a plain build.
"""

def _linked_only_impl(ctx):
    deps = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    files = depset(transitive = [dep[DefaultInfo].files for dep in ctx.attr.deps])
    return [CcInfo(linking_context = deps.linking_context), DefaultInfo(files = files)]

linked_only = rule(
    implementation = _linked_only_impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)
