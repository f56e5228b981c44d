#!/usr/bin/env bash
# api_docs_test.sh API_DOCS_AWK LINKS_AWK: what of a header's comments, and of a document's links, Doxygen is given.
set -u
filter=$PWD/$1 links=$PWD/$2
bad=0
complain() { echo "$@"; bad=1; }
cd "$TEST_TMPDIR" || exit

cat >sample.h <<'END'
// Box: a <small> thing, `a < b`. Such as
//
//   Box box;  // whole
//
// or "none".
#ifndef SAMPLE_H_
#define SAMPLE_H_

namespace DTENSOR_EXPORT dtensor {

class Other;  // other.h
class Box {
 public:
  // Its size, with:
  //   - one
  //   - two
  int size() const { return 1; }  // in bytes
  // Grows.
  void Grow(int by);
  void Grow() {
    // not told
    Grow(1);  // nor this
  }
  void Shrink();

  // --- Parts. Of all.
  int parts = 0;  // many,
                  // and more
 private:
  int hidden_;
};

enum class Kind { kA };  // what it is

namespace internal {
// Nobody's.
void Secret();
}  // namespace internal

// Of all below.

// --- Functions.
// Of a template.
template <typename T>
DTENSOR_EXPORT T Make();

}  // namespace dtensor

#endif  // SAMPLE_H_
END
awk -v header=dtensor/room/sample.h -f "$filter" sample.h >made || complain "status $?"
# has TEXT: these lines stand in what was made, one after the other.
has() {
  [[ $'\n'$(<made)$'\n' == *$'\n'"$1"$'\n'* ]] || complain "these lines are missing: $1"
}
lacks() { ! grep -n -- "$1" made || complain "$1 is there"; }
heading='Box: a &lt;small&gt; thing, `a < b`. Such as'
has "//! \\defgroup dtensor_room_sample_h dtensor/room/sample.h
//! \\ingroup room_dtensor_room
//!
//! $heading
//!
//!
//! \\code{.cpp}
//!   Box box;  // whole
//! \\endcode
//!
//! or &quot;none&quot;."
has "namespace dtensor {
/// \\addtogroup dtensor_room_sample_h
/// @{"
has "class Other;  // other.h
/// $heading"
has "/// Its size, with:
///
///   - one
///   - two
  int size() const { return 1; }  ///< in bytes
/// Grows.
  void Grow(int by);
/// Grows.
  void Grow() {
    Grow(1);  // nor this"
has "  }
  void Shrink();"
has "/// \\name Parts
/// Of all.
/// @{"
has "  int parts = 0;  ///< many,
                  ///< and more
/// @}

 private:"
has "enum class Kind { kA };  ///< what it is"
lacks Secret
lacks Nobody
has "/// \\addtogroup dtensor_room_sample_h
/// Of all below.
/// @{"
has "/// \\name Functions
/// @{

/// Of a template.
template <typename T>
T Make();"
has "/// @}
/// @}

}  // namespace dtensor"

printf '#define A\n' >bare.h
awk -v header=bare.h -f "$filter" bare.h >made 2>said
[[ $? == 1 && $(<said) == "bare.h: no comment at its head" ]] || complain "without a heading: $(<said)"
printf '// Ours.\nnamespace DTENSOR_EXPORT dtensor {\nnamespace internal {\nint a();\n}  // namespace internal\n}\n' >ours.h
awk -v header=ours.h -f "$filter" ours.h >made
[[ $? == 3 ]] || complain "a header that is internal has a page"

cat >page.md <<'END'
See [the manual](../cli.md#plan), [a source](../../bench/x.cc), [all](README.md), ![a picture](x.svg), [there](https://x.org/y).
END
awk -v file=docs/tutorial/page.md -v all="docs/cli.md docs/tutorial/README.md" -f "$links" page.md >made
has 'See [the manual](../cli.md#plan), a source, [all](overview.md), ![a picture](x.svg), [there](https://x.org/y).'
exit $bad
