#include "dtensor/ops/halo.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/layout/digest.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/comm/communicator.h"
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
    const int64_t first = run.first * reach.step - reach.before;
    const int64_t last = first + (run.count - 1) * reach.step;
    const int64_t begin = std::clamp<int64_t>(first, 0, n);
    runs.push_back({run, begin, std::clamp<int64_t>(last + reach.reach, begin, n)});
  }
  return runs;
}

uint64_t DigestOf(const Halo& halo) {
  Digest digest;
  for (size_t i = 0; i < halo.ranks.size(); ++i) {
    digest.Add(int64_t{halo.ranks[i]});
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

const Halo& HaloOf(const RankCall& call) { return static_cast<const Halo&>(*call.decision.state); }

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
class HaloBoxes : public CallDescription, public ExchangeBoxes {
 public:
  HaloBoxes(const RankCall& call, const Tensor& shard)
      : halo_(HaloOf(call)), call_(call), a_(shard.size(0)), b_(shard.size(2)) {}

  std::string ToString() const override {
    return absl::StrCat("the halos of ", SpecsText({call_.decision.operands[0]}), " on ranks ",
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

  // `src`, `dst`: one tensor for each part; undefined ones take no part.
  absl::Status Exchange(const std::vector<Tensor>& src, const std::vector<Tensor>& dst) const {
    Digest digest;
    digest.Add(static_cast<int64_t>(this->digest()));
    digest.Add(static_cast<int64_t>(call_.lineage));
    Collective collective;
    collective.axes = halo_.axes;
    collective.op = call_.decision.op->name;
    collective.group = halo_.ranks;
    collective.digest = digest.value();
    collective.description = this;
    collective.boxes = this;
    std::vector<std::vector<ReceiveBox>> receives;
    for (size_t p = 0; p < src.size(); ++p) {
      receives.push_back(Receives(p, call_.context.rank()));
    }
    std::vector<ExchangePart> parts;
    const Tensor none;
    const auto or_none = [&](const Tensor& t) -> const Tensor& { return t.numel() > 0 ? t : none; };
    for (size_t p = 0; p < src.size(); ++p) {
      parts.push_back({or_none(src[p]), or_none(dst[p]), receives[p]});
    }
    return call_.context.communicator().Exchange(collective, parts);
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

// to += term; both have three dimensions.
absl::Status AddTo(Device& device, const Tensor& to, const Tensor& term) {
  DT_ASSIGN_OR_RETURN(const Tensor sum, Tensor::Empty(device, to.dtype(), to.shape()));
  DT_RETURN_IF_ERROR(kernels::Binary(device, kernels::BinaryOp::kAdd, to, term, sum));
  return kernels::Copy(device, sum, to);
}

// dx = what this rank's own runs have for it.
absl::Status AddOwn(Device& device, const Halo& halo, absl::Span<const Tensor> reached,
                    const Tensor& dx) {
  const Halo::Shard& mine = halo.mine();
  std::vector<std::pair<size_t, Overlap>> own;
  for (size_t r = 0; r < mine.runs.size(); ++r) {
    for (const Overlap& o : Overlaps(mine.runs[r], mine)) own.push_back({r, o});
  }
  const auto part = [&](size_t i) {
    return reached[own[i].first].Narrow(1, own[i].second.reached, own[i].second.length);
  };
  const bool covers = own.size() == 1 && own[0].second.length == dx.size(1);
  if (covers) return kernels::Copy(device, part(0), dx);
  DT_RETURN_IF_ERROR(kernels::Fill(device, dx, 0));
  for (size_t i = 0; i < own.size(); ++i) {
    const Tensor to = dx.Narrow(1, own[i].second.held, own[i].second.length);
    DT_RETURN_IF_ERROR(AddTo(device, to, part(i)));
  }
  return absl::OkStatus();
}

}  // namespace

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
  std::vector<Tensor> reached(halo.most_runs);
  const std::vector<WindowRun>& runs = halo.mine().runs;
  for (size_t r = 0; r < runs.size(); ++r) {
    if (halo.moves) {
      const int64_t shape[] = {x.size(0), runs[r].end - runs[r].begin, x.size(2)};
      DT_ASSIGN_OR_RETURN(reached[r], Tensor::Empty(call.device(), x.dtype(), shape));
    } else {
      const std::vector<Overlap> all = Overlaps(runs[r], halo.mine());
      reached[r] = all.empty() ? x.Narrow(1, 0, 0) : x.Narrow(1, all[0].held, all[0].length);
    }
  }
  // Without elements there is nothing to send, on any of the ranks.
  if (halo.moves && x.size(0) * x.size(2) > 0) {
    const std::vector<Tensor> src(halo.most_runs, x);
    DT_RETURN_IF_ERROR(BoxesToRuns(call, x).Exchange(src, reached));
  }
  reached.resize(runs.size());
  return reached;
}

absl::Status ScatterHalos(const RankCall& call, absl::Span<const Tensor> reached,
                          const Tensor& dx) {
  Device& device = call.device();
  const Halo& halo = HaloOf(call);
  if (dx.size(0) * dx.size(2) == 0) return absl::OkStatus();
  DT_RETURN_IF_ERROR(AddOwn(device, halo, reached, dx));
  if (!halo.moves) return absl::OkStatus();
  const BoxesToShards boxes(call, dx);
  std::vector<Tensor> src(reached.begin(), reached.end()), arrived(halo.most_runs);
  src.resize(halo.most_runs);
  for (size_t p = 0; p < halo.most_runs; ++p) {
    int64_t length = 0;
    boxes.ForEachArrival(p, halo.me,
                         [&](size_t, const Overlap& o, int64_t at) { length = at + o.length; });
    const int64_t shape[] = {dx.size(0), length, dx.size(2)};
    if (length == 0) continue;
    DT_ASSIGN_OR_RETURN(arrived[p], Tensor::Empty(device, dx.dtype(), shape));
  }
  DT_RETURN_IF_ERROR(boxes.Exchange(src, arrived));
  absl::Status status;
  for (size_t p = 0; p < halo.most_runs; ++p) {
    boxes.ForEachArrival(p, halo.me, [&](size_t, const Overlap& o, int64_t at) {
      status.Update(
          AddTo(device, dx.Narrow(1, o.held, o.length), arrived[p].Narrow(1, at, o.length)));
    });
  }
  return status;
}

}  // namespace dtensor::internal
