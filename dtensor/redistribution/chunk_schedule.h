// ChunkSchedule: one round of a redistribution in several exchanges, and which rows of a product
// are made while each of them is on its way, as an immutable value.
//
//   rows     the indices of the dimension that is split, by their place in a local tensor. Of an
//            all-gather they are those of the result, which a product reads; of a reduce-scatter
//            those of the source, which a product writes.
//   chunk    what one exchange moves: for each rank a share of what it receives in the whole round,
//            of as many rows as every other chunk, or one less. All ranks have as many chunks.
//   step     an exchange begins, rows are made, the exchange is finished. There is a step more than
//            there are chunks, since the first rows, or the last chunk, have nothing beside them:
//
//            step              0         1         2        ...  chunks
//            all-gather        chunk 0   chunk 1   chunk 2  ...  -
//              rows that are   own       chunk 0   chunk 1  ...  the last chunk
//            reduce-scatter    -         chunk 0   chunk 1  ...  the last chunk
//              rows of         chunk 0   chunk 1   chunk 2  ...  those that nobody receives
//
// An all-gather asks the peers in the order of the ring, each rank beginning with the next one, so
// that none is asked by all at once. A chunk of a reduce-scatter is a share of each rank's own
// rows, so its rows are as many intervals as there are ranks, and each has all its terms at once:
// they are added in the order of the whole round, with its bits.
//
// Wire volume is that of the plan: each element moves once, between the ranks of the plan. Only
// there are more messages. All of it is a pure function of (plan, chunks): alike on all ranks.
#ifndef DTENSOR_REDISTRIBUTION_CHUNK_SCHEDULE_H_
#define DTENSOR_REDISTRIBUTION_CHUNK_SCHEDULE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Rows [begin, end), by their place in a local tensor.
struct RowRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

class ChunkSchedule {
 public:
  // What a dimension may be dealt in: blocks of all ranks together.
  static constexpr int64_t kMostIntervals = 1024;
  static constexpr int kMostChunks = 64;

  // Null where the plan is not cut: unless it is one round, an all-gather or a reduce-scatter that
  // reads the source, of one dimension and one type; and for dimensions that are dealt in more than
  // kMostIntervals. Requires: 1 <= chunks <= kMostChunks.
  static std::shared_ptr<const ChunkSchedule> Create(const RedistributionPlan& plan, int chunks);

  const RedistributionPlan& plan() const { return plan_; }
  bool gathers() const { return gathers_; }  // else it reduces and scatters
  int dim() const { return dim_; }           // of which rows are the indices
  int chunks() const { return chunks_; }
  int steps() const { return chunks_ + 1; }
  // The chunk that moves in a step; -1: none.
  int ChunkOf(int step) const;

  // What `rank` receives in a chunk. Of an all-gather nothing from itself.
  std::vector<ReceiveBox> Receives(int chunk, int rank) const;
  // What `rank` has of its own result before the first step: of an all-gather its own rows.
  std::vector<ReceiveBox> Own(int rank) const;
  // The rows that `rank` makes in a step: ascending, not empty, apart from each other.
  std::vector<RowRange> Rows(int step, int rank) const;

  // Of all chunks, as they are counted (CommunicatorTraffic): bytes are the plan's.
  int64_t BytesReceived(int rank) const;
  int64_t Messages(int rank) const;

  // Proves the schedule from its boxes: together the chunks and what is own receive what the plan
  // does, each element once with the same terms; each row is made in one step, of an all-gather not
  // before it is there, of a reduce-scatter before it is sent. O(ranks^2 * boxes): for tests.
  absl::Status Verify() const;

  // "reduce-scatter(tp) of [8, 4] f32 along dimension 0 in 2 chunks", then for each step and rank
  // a line with the rows and what is received.
  std::string ToString() const;

 private:
  explicit ChunkSchedule(const RedistributionPlan& plan) : plan_(plan) {}
  // A box of the plan, one interval of rows.
  struct Piece {
    ReceiveBox box;
    int distance = 0;  // of the peer, in the ring
  };
  std::vector<int> GroupOf(int rank) const;
  std::vector<Piece> PiecesOf(int rank) const;
  absl::Status Wrong(int rank, absl::string_view what) const;
  absl::Status VerifyBoxes(int rank) const;
  absl::Status VerifyRows(int rank) const;
  // The rows of a source that no rank receives.
  std::vector<RowRange> Unsent(int rank) const;
  // The rows of a box, in the tensor that the product reads or writes.
  RowRange RowsOf(const ReceiveBox& box) const;

  RedistributionPlan plan_;
  bool gathers_ = false;
  int dim_ = 0, chunks_ = 1;
};

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_CHUNK_SCHEDULE_H_
