#include "dtensor/bench/redistribute_grid.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace dtensor::bench {
namespace {

struct Pair {
  const char *from, *to;
};

constexpr Pair kOneAxis[] = {{"S0", "R"}, {"S1", "R"}, {"S0", "S1"}, {"S1", "S0"}, {"P", "S0"},
                             {"P", "S1"}, {"P", "R"},  {"R", "S0"},  {"R", "S1"}};
constexpr Pair kTwoAxes[] = {
    {"S0,S1", "S1,S0"}, {"S0,S0", "R,S0"},  {"S0,R", "R,S0"},  {"R,S0", "S0,R"},  {"P,S0", "S0,S0"},
    {"S1,S0", "S0,S0"}, {"S0,S0", "S1,S1"}, {"R,S0", "S1,S1"}, {"P,R", "S0,S0"},  {"P,S0", "S0,R"},
    {"S0,P", "R,S0"},   {"P,S0", "R,R"},    {"P,R", "R,R"},    {"P,P", "R,R"},    {"P,P", "S0,S1"},
    {"S0,R", "R,R"},    {"S0,S0", "R,R"},   {"S0,S1", "R,R"},  {"S0,S1", "S0,S0"}};
constexpr Pair kThreeAxes[] = {{"S0,S1,R", "S1,S0,R"}, {"S0,S0,S0", "S1,S1,S1"},
                               {"S0,S0,S0", "R,R,R"},  {"P,S0,R", "S0,R,R"},
                               {"P,P,S0", "S0,S0,S1"}, {"P,P,P", "R,R,R"}};

Placements Parse(absl::string_view text) {
  Placements placements;
  for (absl::string_view one : absl::StrSplit(text, ',')) {
    placements.push_back(one == "R" ? Replicate() : one == "P" ? Partial() : Shard(one[1] - '0'));
  }
  return placements;
}

std::string Name(const Placements& placements) {
  return absl::StrJoin(placements, ",", [](std::string* out, Placement p) {
    absl::StrAppend(out, p.is_replicate() ? "R"
                         : p.is_partial() ? "P"
                                          : absl::StrCat("S", p.dim()));
  });
}

// A matrix of `bytes`, square for 4-byte elements and sizes of 1 KiB * 16^i.
Dims MatrixOf(int64_t bytes, DType dtype) {
  const auto rows = static_cast<int64_t>(std::sqrt(static_cast<double>(bytes) / 4));
  return {rows, bytes / SizeOf(dtype) / rows};
}

class GridMaker {
 public:
  void Add(const std::vector<int>& mesh, absl::Span<const Pair> pairs) {
    for (const Pair& pair : pairs) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        for (int64_t bytes = 1 << 10; bytes <= 64 << 20; bytes *= 16) {
          AddRow(mesh, pair, MatrixOf(bytes, dtype), dtype);
        }
      }
    }
  }
  // A vector that no number of ranks here divides, and a matrix of a few elements.
  void AddUneven(const std::vector<int>& mesh) {
    for (const Pair& pair : {Pair{"S0", "R"}, {"P", "S0"}, {"P", "R"}}) {
      AddRow(mesh, pair, {1000003}, DType::kF32);
    }
    for (const Pair& pair : {Pair{"S0", "R"}, {"S0", "S1"}, {"P", "S1"}}) {
      AddRow(mesh, pair, {5, 5}, DType::kF32);
    }
  }
  std::vector<Row> Take() { return std::move(rows_); }

 private:
  void AddRow(const std::vector<int>& mesh, const Pair& pair, Dims shape, DType dtype) {
    rows_.push_back({mesh, Parse(pair.from), Parse(pair.to), std::move(shape), dtype});
  }
  std::vector<Row> rows_;
};

bool IsShard(Placement p, int dim) { return p.is_shard() && p.dim() == dim; }

// Whether the axes before `axis` shard `dim` in `now` where they do in `to`.
bool Aligned(const Placements& now, const Placements& to, int axis, int dim) {
  for (int i = 0; i < axis; ++i) {
    if (IsShard(now[i], dim) != IsShard(to[i], dim)) return false;
  }
  return true;
}

}  // namespace

int Row::ranks() const { return std::accumulate(mesh.begin(), mesh.end(), 1, std::multiplies<>()); }

int64_t Row::bytes() const { return NumElements(shape) * SizeOf(dtype); }

std::string Row::Name() const {
  const int64_t size = bytes();
  const std::string how_much = size % 1024 != 0        ? absl::StrJoin(shape, "x")
                               : size % (1 << 20) != 0 ? absl::StrCat(size >> 10, "KiB")
                                                       : absl::StrCat(size >> 20, "MiB");
  return absl::StrCat(absl::StrJoin(mesh, "x"), "/", bench::Name(from), "->", bench::Name(to), "/",
                      ToString(dtype), "/", how_much);
}

std::vector<Row> Grid(bool wide) {
  GridMaker maker;
  maker.Add({2}, kOneAxis);
  maker.AddUneven({2});
  maker.Add({4}, kOneAxis);
  maker.AddUneven({4});
  maker.Add({2, 2}, kTwoAxes);
  if (wide) {
    maker.Add({8}, kOneAxis);
    maker.Add({2, 2, 2}, kThreeAxes);
  }
  return maker.Take();
}

std::vector<Placements> GreedySteps(const Placements& from, const Placements& to) {
  std::vector<Placements> steps;
  Placements now = from;
  const auto move = [&](int axis, Placement target) {
    if (now[axis] == target) return;
    now[axis] = target;
    steps.push_back(now);
  };
  const int axes = static_cast<int>(now.size());
  const bool shards =
      std::any_of(from.begin(), from.end(), [](Placement p) { return p.is_shard(); });
  for (int axis = axes - 1; shards && axes > 1 && axis >= 0; --axis) {
    const bool direct = !to[axis].is_shard() || Aligned(now, to, axis, to[axis].dim());
    move(axis, direct ? to[axis] : Replicate());
  }
  for (int axis = 0; axis < axes; ++axis) move(axis, to[axis]);
  return steps;
}

}  // namespace dtensor::bench
