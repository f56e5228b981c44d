// MeshTransfer: what crosses when a tensor goes from a layout on one mesh to a layout on another,
// of other ranks or another shape. The algebra under RedistributionPlan for two meshes, for its
// sources alone; Transition is the one for a single mesh.
//
// The meshes share no axes, so who holds what a rank needs is found from the regions. It is X and G
// all the same. Without terms to reduce, and with ranks in both meshes, each rank receives what it
// lacks: X alone. Where the meshes have no rank in common, or terms are reduced for several ranks,
// each element has one owner among those who need it, by even shares: it crosses once, and G
// spreads it inside the target's mesh.
#ifndef DTENSOR_MESH_TRANSFER_H_
#define DTENSOR_MESH_TRANSFER_H_

#include <cstdint>
#include <vector>

#include "dtensor/layout.h"
#include "dtensor/regions.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/dims.h"

namespace dtensor {

class MeshTransfer {
 public:
  // Requires: layouts of shape.size() dimensions. An axis that becomes P(avg) replicates.
  MeshTransfer(const Layout& from, const Layout& to, absl::Span<const int64_t> shape);

  // As Transition has them; ranks are the world's, of either mesh.
  int64_t terms() const { return terms_; }
  bool pivot() const { return pivot_; }
  const AxisList& owner_axes() const { return replicated_; }  // of the target's mesh
  bool fills_identity() const { return !created_.empty(); }
  bool moves() const { return moves_; }      // some element crosses between ranks
  bool is_view() const { return is_view_; }  // every rank's result is a box of what it holds
  const std::vector<int>& ranks() const { return ranks_; }  // of both meshes, ascending

  std::vector<Transfer> ExchangeBoxes(int rank) const;
  std::vector<Transfer> GatherBoxes(int rank) const;
  int64_t NeededElements(int rank) const;
  // Of what the rank needs, the elements that it holds.
  int64_t HeldElements(int rank) const;
  // The least number of messages, as in docs/redistribution.md.
  int64_t LeastMessages() const;

 private:
  using Coordinate = absl::InlinedVector<int, 4>;
  Region HeldBy(int rank) const;
  Region ResultOf(int rank) const;
  std::vector<Region> Needed(int rank) const;
  std::vector<Region> Owned(int rank) const;
  void AppendFrom(int rank, const Region& region, std::vector<Transfer>& boxes) const;
  std::vector<int> TermRanks(int position, int rank) const;
  void FindMoves();
  int64_t ElementsInPlace() const;

  Layout source_, target_;
  Dims shape_;
  bool is_scalar_ = false, pivot_ = false, moves_ = false, is_view_ = false;
  int64_t elements_ = 1, terms_ = 1, needers_ = 1;
  AxisList reduced_, replicas_;    // axes of the source's mesh: partial; neither partial nor shard
  AxisList replicated_, created_;  // axes of the target's mesh: replicate; become partial
  std::vector<int> ranks_;
};

}  // namespace dtensor

#endif  // DTENSOR_MESH_TRANSFER_H_
