"""layering_test: what a target must not depend on, directly or through others."""

def layering_test(name, of, forbidden, tags = []):
    """Passes when the query `forbidden` finds nothing among the dependencies of `of`.

    Args:
      name: of the test.
      of: a label. The umbrella of a layer (//runtime) stands for all its libraries.
      forbidden: a query in which {} stands for the dependencies.
      tags: of both targets.
    """
    if ":" not in of:
        of = of + ":" + of.rpartition("/")[2]
    native.genquery(
        name = name + "_edges",
        testonly = True,
        expression = forbidden.format("deps({})".format(of)),
        scope = [of],
        tags = tags,
    )
    native.sh_test(
        name = name,
        size = "small",
        srcs = ["nothing_found.sh"],
        args = [
            of,
            "$(rootpath :{}_edges)".format(name),
        ],
        data = [":{}_edges".format(name)],
        tags = tags,
    )
