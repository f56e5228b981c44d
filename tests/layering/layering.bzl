"""What a target must not depend on: layering_test, room_test."""

def layering_test(name, of, forbidden, what = None, tags = []):
    """Passes when the query `forbidden` finds nothing among the dependencies of `of`.

    Args:
      name: of the test.
      of: labels. The umbrella of a layer (//runtime) stands for all its libraries.
      forbidden: a query in which {0} stands for the dependencies, direct or through others.
      what: whose dependencies they are, for the message; the first of the labels if None.
      tags: of both targets.
    """
    native.genquery(
        name = name + "_edges",
        testonly = True,
        expression = forbidden.format("deps({})".format(" + ".join(of))),
        scope = of,
        tags = tags,
    )
    native.sh_test(
        name = name,
        size = "small",
        srcs = ["nothing_found.sh"],
        args = [
            what or of[0],
            "$(rootpath :{}_edges)".format(name),
        ],
        data = [":{}_edges".format(name)],
        tags = tags,
    )

def room_test(room, may_use, scope):
    """Passes when the libraries of a room depend directly on nothing but what they may use.

    Args:
      room: a folder.
      may_use: rooms. Their own is one of them.
      scope: labels of libraries that reach all of the room's.
    """
    layering_test(
        name = room.replace("/", "_") + "_room_test",
        forbidden = "filter('^//(dtensor|parallel_plans|runtime)[:/]', " +
                    "kind(rule, deps(filter('^//{}:', {{0}}), 1))) ".format(room) +
                    "except filter('^//({}):', {{0}})".format("|".join([room] + may_use)),
        of = scope,
        what = "//" + room,
    )
