// The styles that plans are made of; ContextParallel, the last, is in context_parallel.h. On the
// style's axis `a` (S is Shard, R Replicate):
//
//   style                parameters                    input         output
//   Colwise(a)           output features S, others R   R             as it comes
//   Rowwise(a, out)      input features and rows S,    as it comes   out (R unless given)
//                        others R
//   SequenceParallel(a)  R                             S(1)          S(1)
//   DataParallel(a)      left to others                S(0)          as it comes
//   ContextParallel(a,p) left to others                S(1) as p     as it comes
//   Edges(a, in, out)    left to others                in            out
//
// So a Linear's weight [out, in] is S(0) by Colwise and S(1) by Rowwise, an Embedding's [rows, dim]
// is S(1) and S(0); any module of yours that says which dimensions are which goes the same way
// (DimRole in module.h), and one that has parameters and says nothing of them is refused. A style
// places a module's own parameters, not those of modules in it: name these.
//
// Who communicates, forward: Colwise gathers an input that was split; Rowwise reduces its Partial
// result, by an all-reduce (R) or a reduce-scatter (S); SequenceParallel, DataParallel and
// ContextParallel move nothing, and their parameters' gradients are Partial.
//
// Rowwise reduces at the module's edge. What a module does with its sum before that, as to add a
// bias, needs the sum whole: an all-reduce in place of the reduce-scatter, of twice the bytes. Add
// a bias to what the module returns, y = Add(down(x), bias): then the reduce-scatter stays, and
// nothing else moves. Explain says of which modules the last result came whole.
//
// An axis is a name of the mesh: an axis or a group. The text is as in C++, but that placements say
// which side they are: Rowwise("tp", out S(1)), Edges("tp", in S(1), out R).
#ifndef DTENSOR_PARALLEL_PLANS_STYLES_H_
#define DTENSOR_PARALLEL_PLANS_STYLES_H_

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "dtensor/layout/placement.h"
#include "dtensor/parallel_plans/parallel_style.h"

namespace dtensor {

struct Colwise {
  explicit Colwise(std::string axis) : axis(std::move(axis)) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  friend bool operator==(const Colwise&, const Colwise&) = default;

  std::string axis;
};

struct Rowwise {
  explicit Rowwise(std::string axis, Placement output = Replicate())
      : axis(std::move(axis)), output(output) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  friend bool operator==(const Rowwise&, const Rowwise&) = default;

  std::string axis;
  Placement output;
};

struct SequenceParallel {
  explicit SequenceParallel(std::string axis) : axis(std::move(axis)) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  friend bool operator==(const SequenceParallel&, const SequenceParallel&) = default;

  std::string axis;
};

struct DataParallel {
  explicit DataParallel(std::string axis) : axis(std::move(axis)) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  friend bool operator==(const DataParallel&, const DataParallel&) = default;

  std::string axis;
};

// Placements: R, or S(d) in contiguous, unit, block or zigzag order, dealing what other axes left;
// Apply refuses others. None: as it comes.
struct Edges {
  Edges(std::string axis, std::optional<Placement> input, std::optional<Placement> output)
      : axis(std::move(axis)), input(input), output(output) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  friend bool operator==(const Edges&, const Edges&) = default;

  std::string axis;
  std::optional<Placement> input, output;
};

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_STYLES_H_
