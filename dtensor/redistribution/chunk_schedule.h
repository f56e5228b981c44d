// ChunkSchedule: splits one round of a redistribution into several exchanges, and says which rows
// of a matrix product are computed while each exchange is in flight. An immutable value.
//
//   rows     the indices of the dimension that is split, by their position in a local tensor: for
//            an all-gather in the result, which a product reads; for a reduce-scatter in the
//            source, which a product writes.
//   chunk    what one exchange moves: for each rank a share of what it receives in the whole round.
//            The numbers of rows in a rank's chunks differ by at most one. All ranks have the same
//            number of chunks.
//   step     an exchange begins, rows are computed, the exchange is finished. There is one more
//            step than chunks, since the first rows of an all-gather are own rows, and the first
//            chunk of a reduce-scatter has to be computed before it can be sent:
//
//            step              0         1         2        ...  chunks
//            all-gather        chunk 0   chunk 1   chunk 2  ...  -
//              rows that are   own       chunk 0   chunk 1  ...  the last chunk
//            reduce-scatter    -         chunk 0   chunk 1  ...  the last chunk
//              rows of         chunk 0   chunk 1   chunk 2  ...  those that nobody receives
//
// In an all-gather each rank receives from its peers in ring order, beginning with the next rank,
// so that not all ranks read from the same peer at once. A chunk of a reduce-scatter contains a
// share of the rows that each rank receives, so it consists of as many intervals as there are
// ranks. All terms of a row are in the same chunk, and are added in the same order as in the whole
// round: the bits are the same.
//
// The bytes moved are those of the plan: each element moves once, between the same ranks. Only the
// number of messages is larger. Everything is a pure function of (plan, chunks), so it is the same
// on all ranks.
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

// Rows [begin, end), by their position in a local tensor.
struct RowRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

class ChunkSchedule {
 public:
  // The most intervals of rows that a rank may receive in the whole round.
  static constexpr int64_t kMostIntervals = 1024;
  static constexpr int kMostChunks = 64;

  // Returns null if the plan cannot be split. It must be a single round, an all-gather or a
  // reduce-scatter that reads the source, along one dimension and without a change of type, in
  // which no rank receives more than kMostIntervals intervals of rows. Requires: 1 <= chunks <=
  // kMostChunks.
  static std::shared_ptr<const ChunkSchedule> Create(const RedistributionPlan& plan, int chunks);

  const RedistributionPlan& plan() const { return plan_; }
  bool gathers() const { return gathers_; }  // else it reduces and scatters
  int dim() const { return dim_; }           // the dimension whose indices are the rows
  int chunks() const { return chunks_; }
  int steps() const { return chunks_ + 1; }
  // The chunk that moves in a step; -1: none.
  int ChunkOf(int step) const;

  // What `rank` receives in a chunk. In an all-gather it receives nothing from itself.
  std::vector<ReceiveBox> Receives(int chunk, int rank) const;
  // What `rank` copies from its own source before the first step: in an all-gather its own rows,
  // else nothing.
  std::vector<ReceiveBox> Own(int rank) const;
  // The rows that `rank` computes in a step: ascending ranges, not empty, with gaps between them.
  std::vector<RowRange> Rows(int step, int rank) const;

  // Sums over all chunks, as they are counted (CommunicatorTraffic). The bytes are the plan's.
  int64_t BytesReceived(int rank) const;
  int64_t Messages(int rank) const;

  // Proves the schedule from its boxes. The chunks and the own rows together are what the plan
  // receives, each element once, with the same terms. Each row is computed in exactly one step: in
  // an all-gather after it has arrived, in a reduce-scatter before it is sent. O(ranks^2 * boxes):
  // for tests.
  absl::Status Verify() const;

  // "reduce-scatter(tp) of [8, 4] f32 along dimension 0 in 2 chunks", then for each step and rank
  // a line with the rows and what is received.
  std::string ToString() const;

 private:
  explicit ChunkSchedule(const RedistributionPlan& plan) : plan_(plan) {}
  // A part of a box of the plan that is one interval of rows.
  struct Piece {
    ReceiveBox box;
    int distance = 0;  // from this rank to the peer, in the ring
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
