#include "dtensor/redistribution/chunk_schedule.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"

namespace dtensor {
namespace {

// The only dimension in which the layouts differ; -1 if there is none, or several.
int CutDim(const RedistributionPlan& plan) {
  int found = -1;
  for (int d = 0; d < plan.from().ndim(); ++d) {
    if (plan.from().dim(d) == plan.to().dim(d)) continue;
    if (found >= 0) return -1;
    found = d;
  }
  return found;
}

bool IsOneRound(const RedistributionPlan& plan) {
  if (plan.rounds().size() != 1 || plan.from().mesh() != plan.to().mesh()) return false;
  if (plan.in_place() || plan.fills_identity() || plan.dtype() != plan.result_dtype()) return false;
  const RedistributionRound& round = plan.rounds()[0];
  return round.from_source && !round.pivot && !round.across;
}

// Sorts the ranges, and joins those that touch.
std::vector<RowRange> Joined(std::vector<RowRange> rows) {
  absl::c_sort(rows, [](const RowRange& a, const RowRange& b) { return a.begin < b.begin; });
  std::vector<RowRange> joined;
  for (const RowRange& range : rows) {
    if (range.size() == 0) continue;
    if (!joined.empty() && range.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, range.end);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

// The part [begin, end) of the rows of `box`, which along `dim` are one interval.
ReceiveBox Cut(const ReceiveBox& box, int dim, int64_t begin, int64_t end) {
  ReceiveBox cut = box;
  MatchedRun& run = cut.dims[dim];
  run.src += begin;
  run.dst += begin;
  run.length = end - begin;
  return cut;
}

}  // namespace

std::shared_ptr<const ChunkSchedule> ChunkSchedule::Create(const RedistributionPlan& plan,
                                                           int chunks) {
  const int dim = CutDim(plan);
  if (dim < 0 || !IsOneRound(plan)) return nullptr;
  const CollectiveKind kind = plan.rounds()[0].kind;
  const bool gathers = kind == CollectiveKind::kAllGather;
  if (!gathers && kind != CollectiveKind::kReduceScatter) return nullptr;
  const std::shared_ptr<ChunkSchedule> schedule(new ChunkSchedule(plan));
  schedule->gathers_ = gathers;
  schedule->dim_ = dim;
  schedule->chunks_ = chunks;
  for (const int rank : plan.Ranks()) {
    int64_t intervals = 0;
    for (const ReceiveBox& box : plan.Receives(0, rank)) intervals += box.dims[dim].count;
    if (intervals > kMostIntervals) return nullptr;
  }
  return schedule;
}

int ChunkSchedule::ChunkOf(int step) const {
  if (!gathers_) return step - 1;
  return step < chunks_ ? step : -1;
}

std::vector<int> ChunkSchedule::GroupOf(int rank) const {
  std::vector<int> group = plan_.to().mesh().Group(rank, plan_.rounds()[0].axes);
  absl::c_sort(group);
  return group;
}

// In the order in which they are received; in an all-gather own pieces come first.
std::vector<ChunkSchedule::Piece> ChunkSchedule::PiecesOf(int rank) const {
  const std::vector<int> group = GroupOf(rank);
  const auto size = static_cast<int>(group.size());
  const auto place = [&](int of) {
    return static_cast<int>(absl::c_find(group, of) - group.begin());
  };
  const int own = place(rank);
  std::vector<Piece> pieces;
  for (const ReceiveBox& box : plan_.Receives(0, rank)) {
    const MatchedRun& run = box.dims[dim_];
    const int distance = gathers_ ? (place(box.peers[0]) - own + size) % size : 0;
    for (int64_t j = 0; j < run.count; ++j) {
      Piece& piece = pieces.emplace_back(Piece{box, distance});
      piece.box.dims[dim_] = {.src = run.src + j * run.src_stride,
                              .dst = run.dst + j * run.dst_stride,
                              .length = run.length};
    }
  }
  const auto earlier = [&](const Piece& a, const Piece& b) {
    if (a.distance != b.distance) return a.distance < b.distance;
    return a.box.dims[dim_].dst < b.box.dims[dim_].dst;
  };
  absl::c_stable_sort(pieces, earlier);
  return pieces;
}

std::vector<ReceiveBox> ChunkSchedule::Own(int rank) const {
  std::vector<ReceiveBox> own;
  if (!gathers_) return own;
  for (Piece& piece : PiecesOf(rank)) {
    if (piece.distance == 0) own.push_back(std::move(piece.box));
  }
  return own;
}

// Consecutive boxes may have the same rows (of other columns); such rows are counted once.
std::vector<ReceiveBox> ChunkSchedule::Receives(int chunk, int rank) const {
  std::vector<Piece> pieces = PiecesOf(rank);
  if (gathers_) std::erase_if(pieces, [](const Piece& piece) { return piece.distance == 0; });
  const auto same_rows = [&](const Piece& a, const Piece& b) {
    return a.distance == b.distance && a.box.dims[dim_] == b.box.dims[dim_];
  };
  int64_t all = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i == 0 || !same_rows(pieces[i - 1], pieces[i])) all += pieces[i].box.dims[dim_].length;
  }
  const int64_t begin = all * chunk / chunks_, end = all * (chunk + 1) / chunks_;
  std::vector<ReceiveBox> boxes;
  int64_t at = 0, next = 0;  // rows before this piece, and including it
  for (size_t i = 0; i < pieces.size(); ++i) {
    const int64_t length = pieces[i].box.dims[dim_].length;
    if (i == 0 || !same_rows(pieces[i - 1], pieces[i])) at = std::exchange(next, next + length);
    const int64_t from = std::max(begin - at, int64_t{0}), to = std::min(end - at, length);
    if (from < to) boxes.push_back(Cut(pieces[i].box, dim_, from, to));
  }
  return boxes;
}

RowRange ChunkSchedule::RowsOf(const ReceiveBox& box) const {
  const MatchedRun& run = box.dims[dim_];
  const int64_t begin = gathers_ ? run.dst : run.src;
  return {begin, begin + run.length};
}

std::vector<RowRange> ChunkSchedule::Rows(int step, int rank) const {
  std::vector<RowRange> rows;
  if (gathers_) {
    for (const ReceiveBox& box : step == 0 ? Own(rank) : Receives(step - 1, rank)) {
      rows.push_back(RowsOf(box));
    }
    return Joined(std::move(rows));
  }
  if (step == chunks_) return Unsent(rank);
  for (const int reader : GroupOf(rank)) {
    for (const ReceiveBox& box : Receives(step, reader)) {
      if (absl::c_linear_search(box.peers, rank)) rows.push_back(RowsOf(box));
    }
  }
  return Joined(std::move(rows));
}

// There are such rows if an axis that replicates the source also slices it.
std::vector<RowRange> ChunkSchedule::Unsent(int rank) const {
  std::vector<RowRange> sent;
  for (int step = 0; step < chunks_; ++step) {
    const std::vector<RowRange> rows = Rows(step, rank);
    sent.insert(sent.end(), rows.begin(), rows.end());
  }
  std::vector<RowRange> unsent;
  const Dims local = plan_.from().LocalShape(plan_.shape(), rank);
  int64_t at = 0;
  for (const RowRange& range : Joined(std::move(sent))) {
    unsent.push_back({at, range.begin});
    at = range.end;
  }
  unsent.push_back({at, NumElements(local) == 0 ? 0 : local[dim_]});
  return Joined(std::move(unsent));
}

int64_t ChunkSchedule::BytesReceived(int rank) const { return plan_.BytesReceived(0, rank); }

int64_t ChunkSchedule::Messages(int rank) const {
  int64_t messages = 0;
  for (int chunk = 0; chunk < chunks_; ++chunk) {
    for (const ReceiveBox& box : Receives(chunk, rank)) {
      messages += absl::c_count_if(box.peers, [&](int peer) { return peer != rank; });
    }
  }
  return messages;
}

std::string ChunkSchedule::ToString() const {
  const RedistributionRound& round = plan_.rounds()[0];
  std::string text =
      absl::StrCat(dtensor::ToString(round.kind), "(", plan_.to().mesh().AxisNames(round.axes),
                   ") of ", DimsToString(plan_.shape()), " ", dtensor::ToString(plan_.dtype()),
                   " along dimension ", dim_, " in ", chunks_, " chunks");
  const auto row_text = [](std::string* out, const RowRange& range) {
    absl::StrAppend(out, range.begin, "..", range.end);
  };
  const auto box_text = [&](std::string* out, const ReceiveBox& box) {
    const MatchedRun& run = box.dims[dim_];
    absl::StrAppend(out, run.dst, "..", run.dst + run.length, " of ",
                    absl::StrJoin(box.peers, "+"));
  };
  for (int step = 0; step < steps(); ++step) {
    for (const int rank : plan_.Ranks()) {
      absl::StrAppend(&text, "\nstep ", step, " rank ", rank, ": makes ",
                      absl::StrJoin(Rows(step, rank), " ", row_text));
      const int chunk = ChunkOf(step);
      if (chunk < 0) continue;
      absl::StrAppend(&text, "; receives ", absl::StrJoin(Receives(chunk, rank), ", ", box_text));
    }
  }
  return text;
}

}  // namespace dtensor
