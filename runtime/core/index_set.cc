#include "dtensor/runtime/core/index_set.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// The common part of two runs, and the gaps of a set, rarely have more runs than this.
using Runs = absl::InlinedVector<IndexRun, 6>;

IndexRun IntervalRun(int64_t begin, int64_t end) { return {.begin = begin, .length = end - begin}; }

// Intervals [first, last) of `run`; none when last == first.
IndexRun Intervals(const IndexRun& run, int64_t first, int64_t last) {
  const int64_t count = last - first;
  return {run.begin + first * run.stride, run.length, count == 1 ? 0 : run.stride, count};
}

// Appends `run`, which ends no run of `runs` and interleaves with none, keeping `runs` canonical.
template <typename RunVector>
void Append(RunVector& runs, IndexRun run) {
  if (run.length <= 0 || run.count <= 0) return;
  if (run.count == 1 || run.stride == run.length) run = IntervalRun(run.begin, run.end());
  if (!runs.empty() && runs.back().end() == run.begin) {
    // The two adjacent intervals become one. Its length may end one run and begin another.
    const IndexRun last = runs.back();
    runs.pop_back();
    if (last.count > 1) runs.push_back(Intervals(last, 0, last.count - 1));
    Append(runs, IntervalRun(last.end() - last.length, run.begin + run.length));
    if (run.count == 1) return;
    run = Intervals(run, 1, run.count);
  }
  if (!runs.empty() && runs.back().length == run.length) {
    IndexRun& last = runs.back();
    const int64_t step = run.begin - (last.end() - last.length);
    if (last.count == 1 || last.stride == step) {
      const int64_t taken = run.count == 1 || run.stride == step ? run.count : 1;
      last.stride = step;
      last.count += taken;
      if (taken == run.count) return;
      run = Intervals(run, 1, run.count);
    }
  }
  runs.push_back(run);
}

// The intervals of `run` that have an index in [begin, end), uncut. Count is 0 if there are none.
IndexRun Touching(const IndexRun& run, int64_t begin, int64_t end) {
  if (run.begin >= end || run.end() <= begin) return {.count = 0};
  if (run.count == 1) return run;
  int64_t first = 0, last = run.count;
  if (run.begin + run.length <= begin) first = (begin - run.begin - run.length) / run.stride + 1;
  if (run.end() > end) last = std::min(last, (end - run.begin - 1) / run.stride + 1);
  if (first >= last) return {.count = 0};
  return Intervals(run, first, last);
}

// Below, `parts` receives runs in order of their begins. Each is cut from the same place of one
// interval of `a` and one of `b`, or of every n-th: positions in `a` and `b` are strided as well.

// `a` is one interval.
void CommonWithInterval(const IndexRun& a, const IndexRun& b, Runs& parts) {
  const IndexRun whole = Touching(b, a.begin, a.end());
  if (whole.count == 0) return;
  int64_t first = 0, last = whole.count;
  if (whole.count == 1 || whole.begin < a.begin) {
    parts.push_back(
        IntervalRun(std::max(whole.begin, a.begin), std::min(whole.begin + whole.length, a.end())));
    first = 1;
  }
  const bool cut_end = whole.count > 1 && whole.end() > a.end();
  if (cut_end) --last;
  if (first < last) parts.push_back(Intervals(whole, first, last));
  if (cut_end) parts.push_back(IntervalRun(whole.end() - whole.length, a.end()));
}

// Intervals j of `a` and k of `b` have the same relative position as j + period_a and k + period_b.
// So one period suffices: the pairs with j < period_a or k < period_b are the first of their kind.
void CommonByPeriod(const IndexRun& a, int64_t period_a, const IndexRun& b, int64_t period_b,
                    Runs& parts) {
  int64_t j = 0, k = 0;
  while (j < a.count && k < b.count && (j < period_a || k < period_b)) {
    const int64_t begin_a = a.begin + j * a.stride, end_a = begin_a + a.length;
    const int64_t begin_b = b.begin + k * b.stride, end_b = begin_b + b.length;
    IndexRun part = IntervalRun(std::max(begin_a, begin_b), std::min(end_a, end_b));
    if (part.length > 0) {
      part.count = 1 + std::min((a.count - 1 - j) / period_a, (b.count - 1 - k) / period_b);
      if (part.count > 1) part.stride = a.stride * period_a;
      parts.push_back(part);
    }
    end_a <= end_b ? ++j : ++k;
  }
}

void Common(const IndexRun& whole_a, const IndexRun& whole_b, Runs& parts) {
  const int64_t begin = std::max(whole_a.begin, whole_b.begin);
  const int64_t end = std::min(whole_a.end(), whole_b.end());
  const IndexRun a = Touching(whole_a, begin, end), b = Touching(whole_b, begin, end);
  if (a.count == 0 || b.count == 0) return;
  if (a.count == 1) return CommonWithInterval(a, b, parts);
  if (b.count == 1) return CommonWithInterval(b, a, parts);
  const int64_t gcd = a.stride == b.stride ? a.stride : std::gcd(a.stride, b.stride);
  const int64_t period_a = b.stride / gcd, period_b = a.stride / gcd;
  if (period_a + period_b <= std::min(a.count, b.count)) {
    return CommonByPeriod(a, period_a, b, period_b, parts);
  }
  // Goes through the intervals of the run that has fewer. The strides differ.
  const bool a_is_fewer = a.count != b.count ? a.count < b.count : a.stride > b.stride;
  const IndexRun& fewer = a_is_fewer ? a : b;
  const IndexRun& more = a_is_fewer ? b : a;
  for (int64_t j = 0; j < fewer.count; ++j) {
    CommonWithInterval(Intervals(fewer, j, j + 1), more, parts);
  }
}

// Calls fn(i, j, parts) for each pair of runs a[i], b[j] with common indices, in ascending order.
template <typename Fn>
void ForEachCommon(absl::Span<const IndexRun> a, absl::Span<const IndexRun> b, Fn fn) {
  Runs parts;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    parts.clear();
    Common(a[i], b[j], parts);
    if (!parts.empty()) fn(i, j, parts);
    a[i].end() <= b[j].end() ? ++i : ++j;
  }
}

bool Interleave(const Runs& parts) {
  const auto meet = [](const IndexRun& a, const IndexRun& b) { return a.end() > b.begin; };
  return std::adjacent_find(parts.begin(), parts.end(), meet) != parts.end();
}

// The single run that parts of the same stride form together, if they do: even and odd indices, for
// example, form an interval.
std::optional<IndexRun> EvenlySpaced(const Runs& parts) {
  const int64_t step = parts[1].begin - parts[0].begin;
  if (step * static_cast<int64_t>(parts.size()) != parts[0].stride) return std::nullopt;
  IndexRun joined = {parts[0].begin, parts[0].length, step, 0};
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].length != joined.length || parts[i].begin != joined.begin + i * step) {
      return std::nullopt;
    }
    joined.count += parts[i].count;
  }
  return joined;
}

// Appends parts as Common returns them. Those of one period interleave, and end in their order.
template <typename RunVector>
void AppendParts(const Runs& parts, RunVector& runs) {
  if (!Interleave(parts)) {
    for (const IndexRun& part : parts) Append(runs, part);
    return;
  }
  if (const std::optional<IndexRun> joined = EvenlySpaced(parts)) return Append(runs, *joined);
  for (int64_t round = 0; round < parts[0].count; ++round) {
    for (const IndexRun& part : parts) {
      if (round < part.count) Append(runs, Intervals(part, round, round + 1));
    }
  }
}

// The indices in [begin, end) that `runs` lacks. Requires: all of `runs` lies in [begin, end).
template <typename RunVector>
void Complement(absl::Span<const IndexRun> runs, int64_t begin, int64_t end, RunVector& out) {
  for (const IndexRun& run : runs) {
    Append(out, IntervalRun(begin, run.begin));
    if (run.count > 1) {
      Append(out, {run.begin + run.length, run.stride - run.length, run.stride, run.count - 1});
    }
    begin = run.end();
  }
  Append(out, IntervalRun(begin, end));
}

// How many indices of `run` are below `index`, which `run` contains.
int64_t PositionIn(const IndexRun& run, int64_t index) {
  const int64_t offset = index - run.begin;
  if (run.count == 1) return offset;
  return offset / run.stride * run.length + offset % run.stride;
}

// Appends `piece`, or extends the last piece by it if the two form one.
void Append(std::vector<MatchedRun>& pieces, MatchedRun piece) {
  if (piece.src_stride == piece.length && piece.dst_stride == piece.length) {
    piece = {.src = piece.src, .dst = piece.dst, .length = piece.size()};
  }
  if (pieces.empty()) {
    pieces.reserve(4);
  } else {
    MatchedRun& last = pieces.back();
    const int64_t src_step = piece.src - (last.src + (last.count - 1) * last.src_stride);
    const int64_t dst_step = piece.dst - (last.dst + (last.count - 1) * last.dst_stride);
    const auto steps_alike = [&](const MatchedRun& p) {
      return p.count == 1 || (p.src_stride == src_step && p.dst_stride == dst_step);
    };
    if (last.count == 1 && piece.count == 1 && src_step == last.length && dst_step == last.length) {
      last.length += piece.length;
      return;
    }
    if (last.length == piece.length && steps_alike(last) && steps_alike(piece)) {
      last.src_stride = src_step;
      last.dst_stride = dst_step;
      last.count += piece.count;
      return;
    }
  }
  pieces.push_back(piece);
}

}  // namespace

IndexSet IndexSet::Interval(int64_t begin, int64_t end) {
  IndexSet set;
  Append(set.runs_, IntervalRun(begin, end));
  return set;
}

IndexSet IndexSet::FromIntervals(absl::Span<const IndexRun> ascending) {
  IndexSet set;
  for (const IndexRun& run : ascending) {
    if (run.length <= 0 || run.count <= 0) continue;
    DT_CHECK(run.count == 1 || run.stride >= run.length);
    DT_CHECK(set.empty() || set.runs_.back().end() <= run.begin);
    Append(set.runs_, run);
  }
  return set;
}

int64_t IndexSet::size() const {
  int64_t size = 0;
  for (const IndexRun& run : runs_) size += run.size();
  return size;
}

int64_t IndexSet::At(int64_t position) const {
  DT_CHECK(position >= 0);
  for (const IndexRun& run : runs_) {
    if (position < run.size()) {
      return run.begin + position / run.length * run.stride + position % run.length;
    }
    position -= run.size();
  }
  DT_CHECK(!"position < size()");
  return -1;
}

bool IndexSet::Contains(int64_t index) const {
  const auto run = std::partition_point(runs_.begin(), runs_.end(),
                                        [=](const IndexRun& run) { return run.end() <= index; });
  if (run == runs_.end() || index < run->begin) return false;
  return run->count == 1 || (index - run->begin) % run->stride < run->length;
}

IndexSet IndexSet::Shifted(int64_t offset) const {
  IndexSet shifted = *this;
  for (IndexRun& run : shifted.runs_) run.begin += offset;
  return shifted;
}

IndexSet IndexSet::Slice(int64_t begin, int64_t end) const {
  DT_CHECK(0 <= begin && begin <= end);
  IndexSet slice;
  for (const IndexRun& run : runs_) {
    // Positions in this run, then as (interval, offset in it).
    const int64_t from = std::max<int64_t>(begin, 0), to = std::min(end, run.size());
    if (from < to) {
      const int64_t first = from / run.length, last = to / run.length;
      const int64_t head = from % run.length, tail = to % run.length;
      const int64_t first_begin = run.begin + first * run.stride;
      const int64_t last_begin = run.begin + last * run.stride;
      if (first == last) {
        Append(slice.runs_, IntervalRun(first_begin + head, first_begin + tail));
      } else {
        Append(slice.runs_, IntervalRun(first_begin + head, first_begin + run.length));
        Append(slice.runs_, Intervals(run, first + 1, last));
        Append(slice.runs_, IntervalRun(last_begin, last_begin + tail));
      }
    }
    begin -= run.size();
    end -= run.size();
  }
  DT_CHECK(end <= 0);
  return slice;
}

IndexSet IndexSet::Intersect(const IndexSet& other) const {
  IndexSet common;
  ForEachCommon(runs_, other.runs_,
                [&](size_t, size_t, const Runs& parts) { AppendParts(parts, common.runs_); });
  return common;
}

std::vector<IndexSet> IndexSet::IntersectInParts(const IndexSet& other) const {
  std::vector<IndexSet> sets;
  IndexSet rest;  // parts that interleave with nothing
  ForEachCommon(runs_, other.runs_, [&](size_t, size_t, const Runs& parts) {
    const bool interleave = Interleave(parts);
    for (const IndexRun& part : parts) {
      Append(interleave ? sets.emplace_back().runs_ : rest.runs_, part);
    }
  });
  if (!rest.empty()) sets.push_back(std::move(rest));
  return sets;
}

int64_t IndexSet::CommonSize(const IndexSet& other) const {
  int64_t size = 0;
  ForEachCommon(runs_, other.runs_, [&](size_t, size_t, const Runs& parts) {
    for (const IndexRun& part : parts) size += part.size();
  });
  return size;
}

IndexSet IndexSet::Union(const IndexSet& other) const {
  if (empty() || other.empty()) return empty() ? other : *this;
  const int64_t begin = std::min(runs_.front().begin, other.runs_.front().begin);
  const int64_t end = std::max(runs_.back().end(), other.runs_.back().end());
  // The complement of what both sets leave free. So strided runs need not be split.
  Runs free, other_free, both_free;
  Complement(runs_, begin, end, free);
  Complement(other.runs_, begin, end, other_free);
  ForEachCommon(free, other_free,
                [&](size_t, size_t, const Runs& parts) { AppendParts(parts, both_free); });
  IndexSet joined;
  Complement(both_free, begin, end, joined.runs_);
  return joined;
}

std::string IndexSet::ToString() const {
  const auto format = [](std::string* out, const IndexRun& run) {
    absl::StrAppend(out, run.begin);
    if (run.length > 1) absl::StrAppend(out, "..", run.begin + run.length - 1);
    if (run.count > 1) absl::StrAppend(out, " +", run.stride, " x", run.count);
  };
  return absl::StrCat("{", absl::StrJoin(runs_, ", ", format), "}");
}

std::vector<MatchedRun> MatchIndexSets(const IndexSet& src, const IndexSet& dst) {
  std::vector<MatchedRun> pieces;
  const absl::Span<const IndexRun> a = src.runs(), b = dst.runs();
  size_t i = 0, j = 0;
  int64_t src_base = 0, dst_base = 0;  // positions of the first indices of a[i] and b[j]
  ForEachCommon(a, b, [&](size_t next_i, size_t next_j, const Runs& parts) {
    for (; i < next_i; ++i) src_base += a[i].size();
    for (; j < next_j; ++j) dst_base += b[j].size();
    for (const IndexRun& part : parts) {
      const int64_t src_first = PositionIn(a[i], part.begin);
      const int64_t dst_first = PositionIn(b[j], part.begin);
      MatchedRun piece = {src_base + src_first, dst_base + dst_first, part.length, part.count};
      if (part.count > 1) {
        piece.src_stride = PositionIn(a[i], part.begin + part.stride) - src_first;
        piece.dst_stride = PositionIn(b[j], part.begin + part.stride) - dst_first;
      }
      Append(pieces, piece);
    }
  });
  return pieces;
}

}  // namespace dtensor
