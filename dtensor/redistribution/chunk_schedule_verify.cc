// ChunkSchedule::Verify: uses only the boxes, element by element along the split dimension.
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/layout.h"
#include "dtensor/redistribution/chunk_schedule.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// Key: a row of the result, and the box's extent in the other dimensions. Value: the position in
// the source, and the peers whose terms it holds.
using Elements = std::map<std::pair<int64_t, std::vector<int64_t>>, std::vector<int64_t>>;

// Returns false if a row is received twice.
bool Add(const ReceiveBox& box, int dim, Elements& elements) {
  std::vector<int64_t> columns;
  for (int d = 0; d < static_cast<int>(box.dims.size()); ++d) {
    const MatchedRun& run = box.dims[d];
    if (d == dim) continue;
    columns.insert(columns.end(),
                   {run.src, run.dst, run.length, run.count, run.src_stride, run.dst_stride});
  }
  const MatchedRun& run = box.dims[dim];
  bool fresh = true;
  for (int64_t j = 0; j < run.count; ++j) {
    for (int64_t i = 0; i < run.length; ++i) {
      std::vector<int64_t> terms = {run.src + j * run.src_stride + i};
      terms.insert(terms.end(), box.peers.begin(), box.peers.end());
      fresh &= elements.emplace(std::pair(run.dst + j * run.dst_stride + i, columns), terms).second;
    }
  }
  return fresh;
}

}  // namespace

absl::Status ChunkSchedule::Wrong(int rank, absl::string_view what) const {
  return absl::InternalError(absl::StrCat(ToString(), "\nrank ", rank, ": ", what));
}

absl::Status ChunkSchedule::VerifyBoxes(int rank) const {
  Elements planned, received;
  for (const ReceiveBox& box : plan_.Receives(0, rank)) Add(box, dim_, planned);
  bool once = true;
  int64_t bytes = 0;
  for (const ReceiveBox& box : Own(rank)) once &= Add(box, dim_, received);
  for (int chunk = 0; chunk < chunks_; ++chunk) {
    for (const ReceiveBox& box : Receives(chunk, rank)) {
      once &= Add(box, dim_, received);
      const auto others = absl::c_count_if(box.peers, [&](int peer) { return peer != rank; });
      bytes += box.elements() * others * SizeOf(plan_.dtype());
    }
  }
  if (!once) return Wrong(rank, "an element is received twice");
  if (received != planned) return Wrong(rank, "the chunks are not what the plan receives");
  if (bytes != BytesReceived(rank)) return Wrong(rank, "the bytes are not the plan's");
  return absl::OkStatus();
}

absl::Status ChunkSchedule::VerifyRows(int rank) const {
  const Dims local = (gathers_ ? plan_.to() : plan_.from()).LocalShape(plan_.shape(), rank);
  if (NumElements(local) == 0) return absl::OkStatus();
  std::vector<int> made_in(local[dim_], -1);
  for (int step = 0; step < steps(); ++step) {
    for (const RowRange& range : Rows(step, rank)) {
      for (int64_t row = range.begin; row < range.end; ++row) {
        if (std::exchange(made_in[row], step) >= 0) return Wrong(rank, "a row is made twice");
      }
    }
  }
  if (absl::c_linear_search(made_in, -1)) return Wrong(rank, "a row is not made");
  for (int step = 0; step < steps(); ++step) {
    if (ChunkOf(step) < 0) continue;
    for (const int reader : gathers_ ? std::vector<int>{rank} : GroupOf(rank)) {
      for (const ReceiveBox& box : Receives(ChunkOf(step), reader)) {
        if (!gathers_ && !absl::c_linear_search(box.peers, rank)) continue;
        const RowRange rows = RowsOf(box);
        for (int64_t row = rows.begin; row < rows.end; ++row) {
          if (gathers_ && made_in[row] <= step)
            return Wrong(rank, "a row is made before it is there");
          if (!gathers_ && made_in[row] >= step)
            return Wrong(rank, "a row is sent before it is made");
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ChunkSchedule::Verify() const {
  for (const int rank : plan_.Ranks()) {
    DT_RETURN_IF_ERROR(VerifyBoxes(rank));
    DT_RETURN_IF_ERROR(VerifyRows(rank));
  }
  return absl::OkStatus();
}

}  // namespace dtensor
