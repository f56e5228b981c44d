// CrossMeshTransition: what moves when a tensor goes from a layout on one mesh to a layout on
// another mesh, with other ranks or another shape. It is the algebra behind RedistributionPlan for
// two meshes, only for its sources; SameMeshTransition is the one for a single mesh.
//
// The meshes have no common axes, so the holders of what a rank needs are found from the regions.
// The rounds are X and G (redistribution_plan.h) as on one mesh. If nothing is reduced and some
// rank is in both meshes, each rank receives what it lacks: X alone. If the meshes have no rank in
// common, or terms are reduced for several ranks, each element has one owner among the ranks that
// need it. It is one that holds a term, if there is any; such ranks share the elements evenly. The
// element crosses once between the meshes, and G distributes it inside the target's mesh.
#ifndef DTENSOR_REDISTRIBUTION_CROSS_MESH_TRANSITION_H_
#define DTENSOR_REDISTRIBUTION_CROSS_MESH_TRANSITION_H_

#include <cstdint>
#include <vector>

#include "absl/numeric/int128.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/dims.h"

namespace dtensor {

class CrossMeshTransition {
 public:
  // Requires: layouts of shape.size() dimensions. An axis that becomes P(avg) counts as replicated.
  CrossMeshTransition(const Layout& from, const Layout& to, absl::Span<const int64_t> shape);

  // As in SameMeshTransition and AxisRoles. Ranks are those of the world, on either mesh.
  int64_t terms() const { return terms_; }
  int64_t needers() const { return needers_; }
  bool pivot() const { return pivot_; }
  const AxisList& owner_axes() const { return replicated_; }  // of the target's mesh
  bool fills_identity() const { return !created_.empty(); }
  bool moves() const { return moves_; }      // some element crosses between ranks
  bool is_view() const { return is_view_; }  // every rank's result is a box of what it holds
  const std::vector<int>& ranks() const { return ranks_; }  // of both meshes, ascending

  std::vector<ReceiveBox> ExchangeBoxes(int rank) const;
  std::vector<ReceiveBox> GatherBoxes(int rank) const;
  int64_t NeededElements(int rank) const;
  // The number of elements that the rank both needs and holds.
  int64_t HeldElements(int rank) const;
  // The least numbers of messages, as in docs/redistribution.md: those that carry terms or sums of
  // some terms, and those that carry complete elements.
  struct Messages {
    absl::int128 terms = 0, elements = 0;
  };
  Messages LeastMessages() const;

 private:
  using Coordinate = absl::InlinedVector<int, 4>;
  Region HeldBy(int rank) const;
  Region ResultOf(int rank) const;
  std::vector<Region> Needed(int rank) const;
  // A part of what a group of ranks needs, and the ranks of the group that share owning it.
  struct Pool {
    std::vector<Region> regions;
    std::vector<int> ranks;
    std::vector<Region> ShareAt(size_t i) const;
  };
  std::vector<Pool> PoolsOf(int rank) const;
  int ShardOf(int rank) const;
  std::vector<Region> UnheldParts(const Region& needed, const std::vector<int>& shards) const;
  std::vector<Region> Owned(int rank) const;
  void AppendFrom(int rank, const Region& region, std::vector<ReceiveBox>& boxes) const;
  std::vector<int> TermRanks(int position, int rank) const;
  void FindMoves();
  int64_t ElementsInPlace() const;

  Layout source_, target_;
  Dims shape_;
  bool is_scalar_ = false, pivot_ = false, moves_ = false, is_view_ = false;
  int64_t elements_ = 1, terms_ = 1, needers_ = 1;
  // Axes of the source's mesh: those that shard it, partial ones, all others.
  AxisList sharding_, reduced_, replicas_;
  AxisList replicated_, created_;  // axes of the target's mesh: replicated; becoming partial
  std::vector<int> ranks_;
};

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_CROSS_MESH_TRANSITION_H_
