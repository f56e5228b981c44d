// IndexSet: which indices of one dimension a rank holds, as a few strided runs.
//
//   Shard(0) of 10 over 4 ranks, rank 1          {3, 4, 5}           one run
//   blocks of 2 dealt to 3 ranks, 12, rank 0     {0, 1, 6, 7}        one run, count 2, stride 6
//   zigzag of 8 over 2 ranks, rank 0             {0, 1, 6, 7}        the same set: canonical, so ==
//
// A rank's local index of a global index is its position in the set, since local elements are in
// ascending global order. Pure values; nothing here knows of meshes.
//
// The canonical form: take the set's maximal intervals (with no neighbour in the set) from the
// left; each run takes as many of them as have the same length and the same distance. So equal sets
// have equal runs, and no other split into runs that do not interleave has fewer runs.
//
//   {0, 1, 6, 7, 12, 13, 20}   {0..1 +6 x3, 20}
//   {0, 5, 15, 25}             {0 +5 x2, 15 +10 x2}
//   {0, 1, 3, 6, 7, 9}         {0..1, 3, 6..7, 9}: runs never interleave
//
// Costs below are in runs, unless they say otherwise. Up to two runs need no heap.
#ifndef DTENSOR_RUNTIME_CORE_INDEX_SET_H_
#define DTENSOR_RUNTIME_CORE_INDEX_SET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Indices begin + j * stride + [0, length), for j in [0, count).
// Canonical: length >= 1, count >= 1; count == 1 has stride == 0; count > 1 has stride > length.
struct IndexRun {
  int64_t begin = 0, length = 0, stride = 0, count = 1;
  int64_t size() const { return length * count; }
  int64_t end() const { return begin + (count - 1) * stride + length; }  // one past the last index
  friend bool operator==(const IndexRun&, const IndexRun&) = default;
};

class IndexSet {
 public:
  IndexSet() = default;                                  // empty
  static IndexSet Interval(int64_t begin, int64_t end);  // empty when end <= begin
  // Joins runs into the canonical form. The given runs need not be canonical: they may touch or be
  // empty (length or count 0), and a run with count > 1 may have stride == length. Requires: each
  // run ends where the next begins, or before; stride >= length if count > 1.
  static IndexSet FromIntervals(absl::Span<const IndexRun> ascending);

  // In ascending order, and not interleaved: each run ends before the next begins.
  absl::Span<const IndexRun> runs() const { return runs_; }
  int64_t size() const;
  bool empty() const { return runs_.empty(); }
  // The position-th smallest index. Requires: 0 <= position < size().
  int64_t At(int64_t position) const;
  bool Contains(int64_t index) const;

  // The indices at positions [begin, end) of this set. Requires: 0 <= begin <= end <= size().
  IndexSet Slice(int64_t begin, int64_t end) const;

  // Every index increased by `offset`, which may be negative.
  IndexSet Shifted(int64_t offset) const;

  // Normally linear in the runs read and written; if runs of different strides meet, see
  // MatchIndexSets.
  IndexSet Intersect(const IndexSet& other) const;
  IndexSet Union(const IndexSet& other) const;
  // Intersect, as disjoint sets, none of them empty. Strided runs may meet in a pattern that cannot
  // be written as runs that do not interleave. Intersect splits such a pattern into many runs; here
  // each interval of the pattern becomes a set of its own, with one strided run. So the cost is
  // that of MatchIndexSets, however long the runs are.
  std::vector<IndexSet> IntersectInParts(const IndexSet& other) const;
  // The size of Intersect, computed at the cost of IntersectInParts.
  int64_t CommonSize(const IndexSet& other) const;

  std::string ToString() const;  // "{3..5}", "{0..1 +6 x2, 9}", "{}"
  friend bool operator==(const IndexSet&, const IndexSet&) = default;

 private:
  absl::InlinedVector<IndexRun, 2> runs_;
};

// A strided part of what two sets have in common: element (j, i), j < count, i < length, is at
// position src + j * src_stride + i of the first set and dst + j * dst_stride + i of the second.
struct MatchedRun {
  int64_t src = 0, dst = 0, length = 0, count = 1, src_stride = 0, dst_stride = 0;
  int64_t size() const { return length * count; }
  friend bool operator==(const MatchedRun&, const MatchedRun&) = default;
};

// The common indices of two sets, as positions in both. Each common index is in exactly one run;
// runs ascend by their first elements, in src and in dst. They may interleave: {0..3 +6 x9} and
// {2..6 +6 x9} share two strided runs. MatchIndexSets(dst, src) gives the same runs with sides
// swapped.
//
// A pair of runs that meet costs O(1) and gives at most three matched runs if one is an interval or
// their strides are equal. If their strides s and t differ, and they have c and d intervals where
// they overlap, it costs O(min(c, d, (s + t) / gcd(s, t))).
std::vector<MatchedRun> MatchIndexSets(const IndexSet& src, const IndexSet& dst);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_INDEX_SET_H_
