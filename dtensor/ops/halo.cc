#include "dtensor/ops/halo.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/layout/digest.h"
#include "dtensor/layout/regions.h"
#include "dtensor/ops/box_exchange.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor::internal {
namespace {

IndexSet Reached(const WindowRun& run) { return IndexSet::Interval(run.begin, run.end); }

// The runs of the windows that a rank has, of a dimension of n elements.
std::vector<WindowRun> WindowRuns(const IndexSet& held, const WindowReach& reach, int64_t n) {
  std::vector<WindowRun> runs;
  for (const DimRun& run : RunsOf(held)) {
    const int64_t live = std::clamp<int64_t>(reach.limit - run.first, 0, run.count);
    const int64_t first = run.first * reach.step - reach.before;
    const int64_t begin = std::clamp<int64_t>(first, 0, n);
    const int64_t end = live == 0 ? begin : first + (live - 1) * reach.step + reach.reach;
    runs.push_back({run, live, begin, std::clamp<int64_t>(end, begin, n)});
  }
  return runs;
}

uint64_t DigestOf(const Halo& halo) {
  Digest digest;
  for (size_t i = 0; i < halo.ranks.size(); ++i) {
    digest.Add(int64_t{halo.ranks[i]});
    digest.Add(static_cast<int64_t>(halo.shards[i].held.runs().size()));
    for (const IndexRun& run : halo.shards[i].held.runs()) {
      for (const int64_t number : {run.begin, run.length, run.stride, run.count}) {
        digest.Add(number);
      }
    }
    digest.Add(static_cast<int64_t>(halo.shards[i].runs.size()));
    for (const WindowRun& run : halo.shards[i].runs) {
      digest.Add(run.begin);
      digest.Add(run.end);
    }
  }
  return digest.value();
}

// Two intervals of equal length: positions in what a run reaches, and in a shard.
struct Overlap {
  int64_t reached, held, length;
};
std::vector<Overlap> Overlaps(const WindowRun& run, const Halo::Shard& shard) {
  std::vector<Overlap> overlaps;
  for (const MatchedRun& m : MatchIndexSets(Reached(run), shard.held)) {
    for (int64_t i = 0; i < m.count; ++i) {
      overlaps.push_back({m.src + i * m.src_stride, m.dst + i * m.dst_stride, m.length});
    }
  }
  return overlaps;
}

// What each rank receives in one exchange of shards [a, held, b]. Part p is of every rank's run p.
class HaloBoxes : public BoxesOfAll {
 public:
  HaloBoxes(const RankCall& call, const Tensor& shard)
      : halo_(HaloOf(call)), call_(call), a_(shard.size(0)), b_(shard.size(2)) {}

  std::string ToString() const override {
    return absl::StrCat(back() == 0 ? "the halos of " : "the gradients of the halos of ",
                        SpecsText({call_.decision.operands[0]}), " on ranks ",
                        absl::StrJoin(halo_.ranks, ", "));
  }
  uint64_t digest() const override {
    Digest digest;
    digest.Add(static_cast<int64_t>(halo_.digest));
    digest.Add(a_);
    digest.Add(b_);
    digest.Add(back());
    return digest.value();
  }

  absl::Status Run(absl::Span<const SentTensor> parts) const {
    return Exchange(call_, {.axes = halo_.axes, .group = halo_.ranks, .boxes = *this}, parts);
  }

 protected:
  ~HaloBoxes() = default;
  virtual int64_t back() const = 0;
  size_t PlaceOf(int rank) const {
    return static_cast<size_t>(absl::c_lower_bound(halo_.ranks, rank) - halo_.ranks.begin());
  }
  void Add(int from, int64_t src, int64_t dst, int64_t length,
           std::vector<ReceiveBox>& boxes) const {
    ReceiveBox& box = boxes.emplace_back();
    box.peers = {from};
    box.dims = {{.length = a_}, {.src = src, .dst = dst, .length = length}, {.length = b_}};
  }

  const Halo& halo_;

 private:
  const RankCall& call_;
  const int64_t a_, b_;
};

// From shards to what runs reach, which a rank has of itself, too.
class BoxesToRuns final : public HaloBoxes {
 public:
  using HaloBoxes::HaloBoxes;
  std::vector<ReceiveBox> Receives(size_t part, int rank) const override {
    const Halo::Shard& shard = halo_.shards[PlaceOf(rank)];
    std::vector<ReceiveBox> boxes;
    if (part >= shard.runs.size()) return boxes;
    for (size_t from = 0; from < halo_.ranks.size(); ++from) {
      for (const Overlap& o : Overlaps(shard.runs[part], halo_.shards[from])) {
        Add(halo_.ranks[from], o.held, o.reached, o.length, boxes);
      }
    }
    return boxes;
  }

 private:
  int64_t back() const override { return 0; }
};

// From what runs of other ranks reach to the shards: one behind the other, in ascending order of
// ranks.
class BoxesToShards final : public HaloBoxes {
 public:
  using HaloBoxes::HaloBoxes;
  // Calls fn(place of the rank, overlap, where it arrives).
  template <typename Fn>
  void ForEachArrival(size_t part, size_t to, Fn fn) const {
    int64_t at = 0;
    for (size_t from = 0; from < halo_.ranks.size(); ++from) {
      const std::vector<WindowRun>& runs = halo_.shards[from].runs;
      if (from == to || part >= runs.size()) continue;
      for (const Overlap& o : Overlaps(runs[part], halo_.shards[to])) {
        fn(from, o, at);
        at += o.length;
      }
    }
  }
  std::vector<ReceiveBox> Receives(size_t part, int rank) const override {
    std::vector<ReceiveBox> boxes;
    ForEachArrival(part, PlaceOf(rank), [&](size_t from, const Overlap& o, int64_t at) {
      Add(halo_.ranks[from], o.reached, at, o.length, boxes);
    });
    return boxes;
  }

 private:
  int64_t back() const override { return 1; }
};

// `term` in the type `dtype`.
absl::StatusOr<Tensor> As(Device& device, DType dtype, const Tensor& term) {
  if (term.dtype() == dtype) return term;
  DT_ASSIGN_OR_RETURN(const Tensor out, Tensor::Empty(device, dtype, term.shape()));
  DT_RETURN_IF_ERROR(kernels::Unary(device, kernels::UnaryOp::kCopy, term, out));
  return out;
}

// to += term, a tensor of the same shape and any float type.
absl::Status AddTo(Device& device, const Tensor& to, const Tensor& term) {
  DT_ASSIGN_OR_RETURN(const Tensor wide, As(device, to.dtype(), term));
  DT_ASSIGN_OR_RETURN(const Tensor sum, Tensor::Empty(device, to.dtype(), to.shape()));
  DT_RETURN_IF_ERROR(kernels::Binary(device, kernels::BinaryOp::kAdd, to, wide, sum));
  return kernels::Copy(device, sum, to);
}

// total = what this rank's own runs have for it.
absl::Status AddOwn(Device& device, const Halo& halo, absl::Span<const Tensor> reached,
                    const Tensor& total) {
  struct Term {
    Tensor to, from;
  };
  std::vector<Term> terms;
  for (size_t r = 0; r < reached.size(); ++r) {
    for (const Overlap& o : Overlaps(halo.mine().runs[r], halo.mine())) {
      terms.push_back(
          {total.Narrow(1, o.held, o.length), reached[r].Narrow(1, o.reached, o.length)});
    }
  }
  if (terms.size() == 1 && terms[0].to.numel() == total.numel()) {
    return kernels::Unary(device, kernels::UnaryOp::kCopy, terms[0].from, total);
  }
  DT_RETURN_IF_ERROR(kernels::Fill(device, total, 0));
  for (const auto& [to, from] : terms) DT_RETURN_IF_ERROR(AddTo(device, to, from));
  return absl::OkStatus();
}

// total += what other ranks' runs have for it.
absl::Status AddOthers(const RankCall& call, absl::Span<const Tensor> reached, const Tensor& total,
                       DType dtype) {
  Device& device = call.device();
  const Halo& halo = HaloOf(call);
  const BoxesToShards boxes(call, total);
  std::vector<SentTensor> parts(halo.most_runs);
  for (size_t p = 0; p < parts.size(); ++p) {
    if (p < reached.size()) parts[p].from = reached[p];
    int64_t length = 0;
    boxes.ForEachArrival(p, halo.me,
                         [&](size_t, const Overlap& o, int64_t at) { length = at + o.length; });
    const int64_t shape[] = {total.size(0), length, total.size(2)};
    DT_ASSIGN_OR_RETURN(parts[p].to, Tensor::Empty(device, dtype, shape));
  }
  DT_RETURN_IF_ERROR(boxes.Run(parts));
  absl::Status status;
  for (size_t p = 0; p < parts.size(); ++p) {
    boxes.ForEachArrival(p, halo.me, [&](size_t, const Overlap& o, int64_t at) {
      status.Update(
          AddTo(device, total.Narrow(1, o.held, o.length), parts[p].to.Narrow(1, at, o.length)));
    });
  }
  return status;
}

}  // namespace

const Halo& HaloOf(const RankCall& call) { return static_cast<const Halo&>(*call.decision.state); }

int64_t Halo::bytes() const {
  int64_t bytes = 0;
  for (const Shard& shard : shards) {
    bytes += static_cast<int64_t>(sizeof(Shard) + shard.runs.size() * sizeof(WindowRun));
  }
  return bytes;
}

absl::StatusOr<std::shared_ptr<const Halo>> MakeHalo(const OpStateRequest& request, int dim,
                                                     absl::string_view windows,
                                                     const WindowReach& reach) {
  auto halo = std::make_shared<Halo>();
  const Spec& x = *request.operands[0];
  const DeviceMesh& mesh = x.mesh();
  const int64_t n = x.shape[dim];
  const int letter = request.rule.LetterIndex(windows);
  DT_ASSIGN_OR_RETURN(const Layout of_windows,
                      Layout::Create(mesh, {request.assignment.letters[letter]}));
  const AxisList axes = AxesOf(x.layout.dim(dim));
  halo->axes = mesh.AxisNames(axes);
  halo->ranks = mesh.Group(request.rank, axes);
  absl::c_sort(halo->ranks);
  halo->me = static_cast<size_t>(absl::c_find(halo->ranks, request.rank) - halo->ranks.begin());
  for (const int rank : halo->ranks) {
    const auto coordinate = mesh.Coordinate(rank);
    const IndexSet of_rank = DimRegion(of_windows, 0, request.rule.letter_size(letter), coordinate);
    Halo::Shard& shard = halo->shards.emplace_back();
    shard.held = DimRegion(x.layout, dim, n, coordinate);
    shard.runs = WindowRuns(of_rank, reach, n);
    halo->most_runs = std::max(halo->most_runs, shard.runs.size());
    for (const WindowRun& run : shard.runs) {
      halo->moves = halo->moves || Reached(run).CommonSize(shard.held) < run.end - run.begin;
    }
  }
  halo->digest = DigestOf(*halo);
  return halo;
}

absl::StatusOr<std::vector<Tensor>> GatherHalos(const RankCall& call, const Tensor& x) {
  const Halo& halo = HaloOf(call);
  std::vector<SentTensor> parts(halo.most_runs);
  const std::vector<WindowRun>& runs = halo.mine().runs;
  std::vector<Tensor> reached;
  for (size_t r = 0; r < runs.size(); ++r) {
    if (halo.moves) {
      const int64_t shape[] = {x.size(0), runs[r].end - runs[r].begin, x.size(2)};
      DT_ASSIGN_OR_RETURN(parts[r].to, Tensor::Empty(call.device(), x.dtype(), shape));
      reached.push_back(parts[r].to);
    } else {
      const std::vector<Overlap> all = Overlaps(runs[r], halo.mine());
      reached.push_back(all.empty() ? x.Narrow(1, 0, 0) : x.Narrow(1, all[0].held, all[0].length));
    }
  }
  // Without elements there is nothing to send, on any of the ranks.
  if (!halo.moves || x.size(0) * x.size(2) == 0) return reached;
  for (SentTensor& part : parts) part.from = x;
  DT_RETURN_IF_ERROR(BoxesToRuns(call, x).Run(parts));
  return reached;
}

absl::Status ScatterHalos(const RankCall& call, absl::Span<const Tensor> reached,
                          const Tensor& dx) {
  Device& device = call.device();
  if (dx.size(0) * dx.size(2) == 0) return absl::OkStatus();
  const DType wide = AccumulatorOf(dx.dtype());
  Tensor total = dx;
  if (wide != dx.dtype()) {
    DT_ASSIGN_OR_RETURN(total, Tensor::Empty(device, wide, dx.shape()));
  }
  DT_RETURN_IF_ERROR(AddOwn(device, HaloOf(call), reached, total));
  if (HaloOf(call).moves) {
    DT_RETURN_IF_ERROR(AddOthers(call, reached, total, dx.dtype()));
  }
  if (wide == dx.dtype()) return absl::OkStatus();
  return kernels::Unary(device, kernels::UnaryOp::kCopy, total, dx);
}

}  // namespace dtensor::internal
