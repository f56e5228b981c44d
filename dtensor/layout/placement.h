// Placement: how a tensor is laid out along ONE mesh axis of P ranks. This is what users write.
//
//   Replicate()   "R"               every rank holds the whole tensor
//   Shard(d)      "S(d)"            rank r holds the r-th ceil chunk of dimension d
//   Shard(d, o)                     the same, dealt out in another order o: see below
//   Partial(op)   "P(sum)"          every rank holds a full-size term; reducing the terms by op
//                                   gives the tensor
//
//   ShardOrder::Unit(u)     "S(d,unit(u))"     ceil chunks of whole groups of u, as of heads
//   ShardOrder::Cyclic(k)   "S(d,cyclic(k))"   k rounds, each chunked over the axis
//   ShardOrder::Block(b)    "S(d,block(b))"    blocks of b dealt in turn (b = 1: striped)
//   ShardOrder::Zigzag()    "S(d,zigzag)"      2P ceil chunks; rank r holds chunks r and 2P-1-r
//
// A tensor has one placement for each axis of its mesh, in mesh order. Several Shards of one
// dimension split it axis by axis, the first axis outermost. What a rank then holds: regions.h.
// A small value: copy, compare, hash, print; Parse(ToString(p)) == p.
#ifndef DTENSOR_LAYOUT_PLACEMENT_H_
#define DTENSOR_LAYOUT_PLACEMENT_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/reduce_op.h"

namespace DTENSOR_EXPORT dtensor {

// How an axis deals out a dimension. `n` is the unit, the rounds or the block; unused otherwise.
struct ShardOrder {
  enum class Kind : uint8_t { kContiguous, kUnit, kCyclic, kBlock, kZigzag };
  Kind kind = Kind::kContiguous;
  int64_t n = 0;

  static constexpr ShardOrder Contiguous() { return {}; }
  static constexpr ShardOrder Unit(int64_t size) { return {Kind::kUnit, size}; }
  static constexpr ShardOrder Cyclic(int64_t rounds) { return {Kind::kCyclic, rounds}; }
  static constexpr ShardOrder Block(int64_t size) { return {Kind::kBlock, size}; }
  static constexpr ShardOrder Zigzag() { return {Kind::kZigzag, 0}; }
  friend constexpr bool operator==(const ShardOrder&, const ShardOrder&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const ShardOrder& o) {
    return H::combine(std::move(h), o.kind, o.n);
  }
};

std::string ToString(
    ShardOrder order);  // "contiguous", "unit(16)", "cyclic(2)", "block(1)", "zigzag"

class Placement {
 public:
  enum class Kind : uint8_t { kReplicate, kShard, kPartial };

  constexpr Placement() = default;  // Replicate
  constexpr Kind kind() const { return kind_; }
  constexpr bool is_shard() const { return kind_ == Kind::kShard; }
  constexpr bool is_partial() const { return kind_ == Kind::kPartial; }
  constexpr bool is_replicate() const { return kind_ == Kind::kReplicate; }
  constexpr int dim() const { return dim_; }             // of a Shard; negative counts from the end
  constexpr ShardOrder order() const { return order_; }  // of a Shard
  constexpr ReduceOp op() const { return op_; }          // of a Partial

  std::string ToString() const;
  // Reads what ToString prints, and the spellings of C++ and PyTorch: Replicate(), Shard(0),
  // Shard(dim=0), Partial(), Partial(sum), Partial(reduce_op=sum), Partial("sum"). Errors:
  // kInvalidArgument, listing the spellings. For a _StridedShard the message says to write a layout
  // instead.
  static absl::StatusOr<Placement> Parse(absl::string_view text);

  friend constexpr bool operator==(const Placement&, const Placement&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Placement& p) {
    return H::combine(std::move(h), p.kind_, p.op_, p.dim_, p.order_);
  }

 private:
  friend constexpr Placement Replicate();
  friend constexpr Placement Shard(int dim, ShardOrder order);
  friend constexpr Placement Partial(ReduceOp op);
  constexpr Placement(Kind kind, ReduceOp op, int dim, ShardOrder order)
      : kind_(kind), op_(op), dim_(dim), order_(order) {}

  Kind kind_ = Kind::kReplicate;
  ReduceOp op_ = ReduceOp::kSum;
  int dim_ = 0;
  ShardOrder order_;
};

constexpr Placement Replicate() { return {}; }
constexpr Placement Shard(int dim, ShardOrder order = ShardOrder::Contiguous()) {
  return Placement(Placement::Kind::kShard, ReduceOp::kSum, dim, order);
}
constexpr Placement Partial(ReduceOp op = ReduceOp::kSum) {
  return Placement(Placement::Kind::kPartial, op, 0, ShardOrder());
}

using Placements = absl::InlinedVector<Placement, 4>;  // one per mesh axis, in mesh order

std::string ToString(absl::Span<const Placement> placements);  // "P(sum),S(0)"
// Reads placements separated by commas, also as a Python list or tuple:
// "[Shard(dim=0), Replicate()]", "(Shard(dim=0),)".
// Errors: kInvalidArgument, naming the part that cannot be read.
absl::StatusOr<Placements> ParsePlacements(absl::string_view text);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_PLACEMENT_H_
