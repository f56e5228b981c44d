// Reshaping one dimension's layout: SplitDim and JoinDims.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/chunks.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/layout_factors.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// Divides a factor of `size` into an outer part of size / inner and an inner part of `inner`: the
// first splits go to the outer part, the rest to the inner part. Returns how many go to the outer
// part, or -1 if a shard would span the cut.
//
// This is correct if the outer splits leave groups of `inner` whole and, if splits are left over,
// each rank then has one group or none.
int OuterSplits(const DeviceMesh& mesh, const LayoutFactor& factor, int64_t size, int64_t inner) {
  ShareSizes sizes = {size};
  int count = 0;
  for (const AxisSplit& split : factor.splits) {
    const int parts = mesh.axis_size(split.axis);
    if (!DealsWholeGroups(sizes, parts, split.zigzag, inner)) break;
    sizes = SharesOf(sizes, parts, split.zigzag);
    ++count;
  }
  if (count == static_cast<int>(factor.splits.size())) return count;
  const bool one_group = absl::c_all_of(sizes, [=](int64_t s) { return s == 0 || s == inner; });
  return one_group ? count : -1;
}

absl::Status SpansCut(const DeviceMesh& mesh, const DimLayout& dim, int64_t outer_size,
                      int64_t inner_size) {
  return InvalidArgument(
      {"splitting a dimension of ", absl::StrCat(outer_size * inner_size), " = ",
       absl::StrCat(outer_size), " * ", absl::StrCat(inner_size), " laid out as ",
       DimToString(mesh, dim), " on the mesh ", mesh.ToString(),
       ": a shard would span the cut unevenly; redistribute the dimension first, ",
       "or shard it in units of ", absl::StrCat(inner_size)});
}

}  // namespace

absl::StatusOr<std::pair<DimLayout, DimLayout>> SplitDim(const DeviceMesh& mesh,
                                                         const DimLayout& any_dim,
                                                         int64_t outer_size, int64_t inner_size) {
  DT_RETURN_IF_ERROR(
      CheckedNumElements("splitting a dimension", {outer_size, inner_size}).status());
  DT_RETURN_IF_ERROR(Layout::Create(mesh, {any_dim}).status());
  const DimLayout dim = Canonical(mesh, any_dim);
  if (dim.empty() || inner_size <= 1) return std::make_pair(dim, DimLayout());
  if (outer_size <= 1) return std::make_pair(DimLayout(), dim);
  // The cut is inside factor `cut`, or at its end; the factors after it have `below` indices.
  size_t cut = dim.size() - 1;
  int64_t below = 1;
  for (; cut > 0 && dim[cut].size <= inner_size / below; --cut) below *= dim[cut].size;
  const int64_t inner = inner_size / below;
  const int64_t size = cut == 0 ? outer_size * inner : dim[cut].size;
  if (inner_size % below != 0 || size % inner != 0) {
    return SpansCut(mesh, dim, outer_size, inner_size);
  }
  const int count = OuterSplits(mesh, dim[cut], size, inner);
  if (count < 0) return SpansCut(mesh, dim, outer_size, inner_size);

  const auto first_inner = dim[cut].splits.begin() + count;
  DimLayout outer_dim(dim.begin(), dim.begin() + cut + 1);
  outer_dim[cut].size = cut == 0 ? 0 : size / inner;
  outer_dim[cut].splits.assign(dim[cut].splits.begin(), first_inner);
  DimLayout inner_dim = {LayoutFactor{.splits = {first_inner, dim[cut].splits.end()}}};
  inner_dim.insert(inner_dim.end(), dim.begin() + cut + 1, dim.end());
  if (inner == 1 && inner_dim.size() > 1 && inner_dim[0].splits.empty()) {
    // The cut is at the end of a factor: the next factor becomes the inner dimension's outermost.
    inner_dim.erase(inner_dim.begin());
    inner_dim[0].size = 0;
  }
  return std::make_pair(Canonical(mesh, outer_dim), Canonical(mesh, inner_dim));
}

absl::StatusOr<DimLayout> JoinDims(const DimLayout& outer, int64_t outer_size,
                                   const DimLayout& inner, int64_t inner_size) {
  DT_RETURN_IF_ERROR(CheckedNumElements("joining dimensions", {outer_size, inner_size}).status());
  if (outer_size == 1 && !IsSplit(outer)) return inner;
  if (inner_size == 1 && !IsSplit(inner)) return outer;
  const int64_t below = inner.empty() ? 1 : InnerSize(inner, 1);
  if (inner_size % below != 0) {
    return InvalidArgument({"joining dimensions of ", absl::StrCat(outer_size), " and ",
                            absl::StrCat(inner_size), ": the inner one is split in groups of ",
                            absl::StrCat(below),
                            ", which do not divide it; redistribute it first"});
  }
  const int64_t groups = outer.empty() ? 1 : InnerSize(outer, 1);
  if (NumElements({groups, inner_size}) > kMaxElements) {
    return InvalidArgument({"joining dimensions of ", absl::StrCat(outer_size), " and ",
                            absl::StrCat(inner_size), ": the outer one is split in groups of ",
                            absl::StrCat(groups), ", which would have more than 2^56 elements; ",
                            "redistribute it first"});
  }
  DimLayout joined = outer.empty() ? DimLayout(1) : outer;
  // At least 1: for an empty dimension any size is right, since no rank holds anything.
  joined.push_back({std::max<int64_t>(1, inner_size / below), {}});
  if (!inner.empty()) {
    joined.back().splits = inner[0].splits;
    joined.insert(joined.end(), inner.begin() + 1, inner.end());
  }
  return Merged(joined);
}

}  // namespace dtensor
