// DeviceMesh: a named grid of ranks, printed ["dp"=2, "tp"=4].
//
// Ranks run in row-major order: the last axis is fastest, so name last the axis that talks most.
// Immutable and cheap to copy; compares by value; holds no communicator and no device.
//
// A mesh covers all ranks of its world, 0..size()-1, or the ranks that OnRanks lists: {0, 1} for
// the first stage of a pipeline, {4, 5} for another. "Rank" always means a rank of the world.
//
// A name may stand for an ordered group of axes: after SplitAxis("tp", {{"kv", 2}, {"rep", 2}}) the
// mesh has the axes "kv" and "rep", and "tp" still names both together; Flatten({"dp", "cp"},
// "data") adds a name and changes no axis.
#ifndef DTENSOR_LAYOUT_DEVICE_MESH_H_
#define DTENSOR_LAYOUT_DEVICE_MESH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

using AxisList = absl::InlinedVector<int, 4>;  // axis indices of a mesh; order matters where stated

class DeviceMesh {
 public:
  struct Axis {
    std::string name;  // unique; letters, digits and '_', not starting with a digit, not "_" alone
    int size = 1;      // ranks along this axis, >= 1
    friend bool operator==(const Axis&, const Axis&) = default;
  };
  static constexpr int kMaxAxes = 16, kMaxGroups = 64;
  static constexpr int kMaxRanks = 1 << 20;  // of a mesh, and of a world: ranks are below it

  DeviceMesh();  // no axes: one rank
  // Errors: kInvalidArgument if a rule above is broken, naming the axis.
  static absl::StatusOr<DeviceMesh> Create(std::vector<Axis> axes);

  int num_axes() const { return static_cast<int>(axes().size()); }
  absl::Span<const Axis> axes() const;
  // Requires: 0 <= axis < num_axes().
  int axis_size(int axis) const;
  const std::string& axis_name(int axis) const;
  std::string AxisNames(absl::Span<const int> axes) const;  // "dp,tp", in the order given
  int size() const;                                         // number of ranks

  // The same axes on exactly these ranks, listed in row-major order. A mesh with listed ranks is
  // not equal to one without, even if the ranks are 0..size()-1, and it may be used in a world of
  // more ranks. Errors: kInvalidArgument unless there are size() distinct ranks in
  // [0, kMaxRanks).
  absl::StatusOr<DeviceMesh> OnRanks(absl::Span<const int> ranks) const;
  // The rank at a position, 0..size()-1 in row-major order, and the position of a rank (-1 if it is
  // not on the mesh). Both take constant time. Requires: 0 <= position < size().
  int RankOf(int position) const;
  int PositionOf(int rank) const;
  bool Contains(int rank) const { return PositionOf(rank) >= 0; }
  // As given to OnRanks; empty if OnRanks was not called: then the ranks are 0..size()-1.
  absl::Span<const int> listed_ranks() const;

  // The axes that `name` stands for: one axis, a named group in its order, or a product of these,
  // as "dp*ep", in the order given. Errors: kNotFound, listing the names of the mesh;
  // kInvalidArgument for a product that has an axis twice.
  absl::StatusOr<AxisList> Find(absl::string_view name) const;
  // The single axis that `name` stands for. Errors: as Find; kInvalidArgument if it names several.
  absl::StatusOr<int> AxisIndex(absl::string_view name) const;

  // A rank's coordinate on each axis, and back. ["dp"=2, "tp"=4]: Coordinate(5) == {1, 1}.
  // Requires: Contains(rank); one coordinate for each axis, from 0, below the axis's size.
  absl::InlinedVector<int, 4> Coordinate(int rank) const;
  int RankAt(absl::Span<const int> coordinate) const;
  // The ranks that differ from `rank` on `axes` only, in row-major order over `axes` as listed:
  //   ["dp"=2, "tp"=4]:  Group(5, {0}) == {1, 5};  Group(5, {1}) == {4, 5, 6, 7}
  // Requires: a rank and axes of this mesh, each axis once.
  std::vector<int> Group(int rank, absl::Span<const int> axes) const;

  // A mesh with the named axes only, in the order given. A named group of axes keeps its name if
  // all of its axes are included. The result is the same on every rank: if this mesh has listed
  // ranks, it is the slice that contains its first rank; if not, the result has no listed ranks
  // either, and a larger world refuses tensors on it. For the slice that contains `rank` (what
  // PyTorch's mesh["tp"] gives): Slice({"tp"})->OnRanks(Group(rank, *Find("tp"))).
  // Errors: as Find; kInvalidArgument for an axis that is named twice.
  absl::StatusOr<DeviceMesh> Slice(absl::Span<const std::string> names) const;
  // The mesh of the other axes, on the ranks that have this coordinate on `axis`: At("pp", 1) of
  // ["pp"=2, "tp"=2] is ["tp"=2]@2..3. Named groups are kept as by Slice. Errors: as AxisIndex;
  // kInvalidArgument for a coordinate that the axis does not have.
  absl::StatusOr<DeviceMesh> At(absl::string_view axis, int64_t coordinate) const;
  // The same ranks with `name` standing for `names` together, outermost first. Errors: as Slice;
  // kInvalidArgument for a name that is taken.
  absl::StatusOr<DeviceMesh> Flatten(absl::Span<const std::string> names, std::string name) const;
  // The same ranks with one axis cut into several, outermost first, whose sizes multiply to its
  // own. Errors: as AxisIndex; kInvalidArgument for other sizes or a name that is taken.
  absl::StatusOr<DeviceMesh> SplitAxis(absl::string_view name, std::vector<Axis> into) const;

  // ["dp"=2, "tp"=4]. Named groups follow the axes: ["kv"=2, "rep"=2; "tp"=kv*rep]. Listed ranks
  // come last: ["tp"=2]@4..5, ["tp"=2]@0,2, ["tp"=4]@0..1,6..7
  std::string ToString() const;
  // Reads what ToString prints, and the short form dp=2,tp=4@8..15. Errors: kInvalidArgument.
  static absl::StatusOr<DeviceMesh> Parse(absl::string_view text);

  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
    return a.rep_ == b.rep_ || a.EqualValue(b);
  }
  template <typename H>
  friend H AbslHashValue(H h, const DeviceMesh& mesh) {
    return H::combine(std::move(h), mesh.hash());
  }

 private:
  struct Rep;  // axes, named groups, size, hash
  static absl::StatusOr<DeviceMesh> Make(Rep rep);
  absl::StatusOr<AxisList> FindAll(absl::Span<const std::string> names) const;  // each axis once
  explicit DeviceMesh(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}
  bool EqualValue(const DeviceMesh& other) const;
  size_t hash() const;
  std::shared_ptr<const Rep> rep_;
};

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_DEVICE_MESH_H_
