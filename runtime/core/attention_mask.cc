#include "dtensor/runtime/core/attention_mask.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using absl::int128;

constexpr absl::string_view kCaseNames[] = {"empty", "full", "diagonal", "partial"};
static_assert(std::size(kCaseNames) == static_cast<size_t>(BlockCase::kPartial) + 1);

constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

// 1 + 2 + ... + (x - 1); 0 if there are no terms.
int128 Triangle(int64_t x) { return x > 1 ? int128(x) * (x - 1) / 2 : 0; }

// Triangle(x) + Triangle(x - step) + ..., `count` terms. Requires: step > 0.
int128 Triangles(int64_t x, int64_t step, int64_t count) {
  if (x <= 1 || count == 0) return 0;
  const int128 n = std::min(count, (x - 1) / step + 1), s = step;
  const int128 linear = n * x * (x - 1) - s * (2 * int128(x) - 1) * (n * (n - 1) / 2);
  return (linear + s * s * ((n - 1) * n * (2 * n - 1) / 6)) / 2;
}

// The run with a stride that can be divided by, so not 0.
IndexRun WithStride(IndexRun run) {
  if (run.count == 1) run.stride = run.length;
  return run;
}

// Below, a pair (q, k) counts if k <= q + shift. For an interval of a queries and one of b keys, z
// is how many keys the first query would see if the keys had no end. Query i sees
// clamp(z + i, 0, b) keys.
int128 OfIntervals(int64_t z, int64_t a, int64_t b) {
  return Triangle(z + a) - Triangle(z) - Triangle(z + a - b) + Triangle(z - b);
}

// The same for the queries [begin, begin + length) and all intervals of `k`.
int128 OfInterval(int64_t begin, int64_t length, const IndexRun& k, int64_t shift) {
  const int64_t z = begin + shift + 1 - k.begin;
  const auto sum = [&](int64_t x) { return Triangles(x, k.stride, k.count); };
  return sum(z + length) - sum(z) - sum(z + length - k.length) + sum(z - k.length);
}

int64_t CeilDiv(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

// For interval i of q and interval j of k, only d = i - j matters.
int128 OfEqualStrides(const IndexRun& q, const IndexRun& k, int64_t shift) {
  const int64_t stride = q.stride, z = q.begin + shift + 1 - k.begin;
  // If d >= full, all pairs of two intervals count; if d < some, none does.
  const int64_t full = CeilDiv(k.length - z, stride);
  const int64_t some = CeilDiv(2 - z - q.length, stride);
  int128 pairs = OfIntervals(1 - full, q.count, k.count) * q.length * k.length;
  for (int64_t d = some; d < full; ++d) {
    const int64_t times = std::min(q.count, k.count + d) - std::max<int64_t>(0, d);
    if (times > 0) pairs += times * OfIntervals(z + d * stride, q.length, k.length);
  }
  return pairs;
}

int128 OfRuns(const IndexRun& q, const IndexRun& k, int64_t shift) {
  if (k.end() - 1 <= q.begin + shift) return int128(q.size()) * k.size();
  if (k.begin > q.end() - 1 + shift) return 0;
  if (q.count == 1) return OfInterval(q.begin, q.length, WithStride(k), shift);
  if (k.count > 1 && q.stride == k.stride) return OfEqualStrides(q, k, shift);
  if (q.count <= k.count) {
    int128 pairs = 0;
    for (int64_t i = 0; i < q.count; ++i) {
      pairs += OfInterval(q.begin + i * q.stride, q.length, k, shift);
    }
    return pairs;
  }
  // With all positions negated, k <= q + shift becomes -q <= -k + shift.
  const auto mirrored = [](const IndexRun& run) {
    return WithStride({1 - run.end(), run.length, run.stride, run.count});
  };
  int128 pairs = 0;
  const IndexRun mirrored_q = mirrored(q), mirrored_k = mirrored(k);
  for (int64_t j = 0; j < k.count; ++j) {
    pairs += OfInterval(mirrored_k.begin + j * mirrored_k.stride, k.length, mirrored_q, shift);
  }
  return pairs;
}

// Pairs with k <= q + shift.
int64_t CountUpTo(const IndexSet& q, const IndexSet& k, int64_t shift) {
  int128 pairs = 0;
  for (const IndexRun& of_q : q.runs()) {
    for (const IndexRun& of_k : k.runs()) pairs += OfRuns(of_q, of_k, shift);
  }
  return static_cast<int64_t>(pairs);
}

IndexSet Between(const IndexSet& set, int64_t begin, int64_t end) {
  return set.Intersect(IndexSet::Interval(begin, end));
}

// Whether k_i <= q_i < k_{i+1} for all i. Returns false if the runs differ in shape.
bool IsLowerTriangle(const IndexSet& q, const IndexSet& k) {
  if (q == k) return true;
  if (q.runs().size() != k.runs().size()) return false;
  for (size_t i = 0; i < q.runs().size(); ++i) {
    const IndexRun &of_q = q.runs()[i], &of_k = k.runs()[i];
    if (of_q.length != of_k.length || of_q.count != of_k.count || of_q.stride != of_k.stride) {
      return false;
    }
    const int64_t ahead = of_q.begin - of_k.begin;
    if (ahead < 0 || (ahead > 0 && of_k.length > 1)) return false;
    if (of_k.count > 1 && ahead >= of_k.stride) return false;
    if (i + 1 < q.runs().size() && of_q.end() > k.runs()[i + 1].begin) return false;
  }
  return true;
}

absl::Status NoMask(absl::string_view text) {
  return InvalidArgument({"\"", text,
                          "\" is no mask; write full, causal, window:W with W from 1, prefix:N "
                          "with N from 0, or documents:0,A,B,... with ascending starts"});
}

absl::StatusOr<std::vector<int64_t>> ParseNumbers(absl::string_view text) {
  std::vector<int64_t> numbers;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    if (!absl::SimpleAtoi(word, &numbers.emplace_back())) return NoMask(text);
  }
  return numbers;
}

}  // namespace

absl::string_view ToString(BlockCase block_case) {
  return kCaseNames[static_cast<size_t>(block_case)];
}

AttentionMask AttentionMask::Causal() { return AttentionMask(Kind::kCausal); }

absl::StatusOr<AttentionMask> AttentionMask::Window(int64_t width) {
  if (width >= 1) return AttentionMask(Kind::kWindow, width);
  return InvalidArgument({"a window of ", absl::StrCat(width),
                          " positions shows nothing; a query sees itself: take 1 or more"});
}

absl::StatusOr<AttentionMask> AttentionMask::Prefix(int64_t size) {
  if (size >= 0) return AttentionMask(Kind::kPrefix, size);
  return InvalidArgument({"there is no prefix of ", absl::StrCat(size), "; take 0 or more"});
}

absl::StatusOr<AttentionMask> AttentionMask::Documents(std::vector<int64_t> starts) {
  const bool ascend = std::adjacent_find(starts.begin(), starts.end(),
                                         std::greater_equal<int64_t>()) == starts.end();
  if (starts.empty() || starts[0] != 0 || !ascend) {
    return InvalidArgument({"documents cannot start at ", absl::StrJoin(starts, ","),
                            "; the first starts at 0, and each behind the one before"});
  }
  AttentionMask mask(Kind::kDocuments);
  mask.starts_ = std::move(starts);
  return mask;
}

KeyRange AttentionMask::KeysOf(int64_t q) const {
  switch (kind_) {
    case Kind::kFull:
      return {0, kEndless};
    case Kind::kCausal:
      return {0, q + 1};
    case Kind::kWindow:
      return {std::max<int64_t>(0, q + 1 - size_), q + 1};
    case Kind::kPrefix:
      return {0, std::max(size_, q + 1)};
    case Kind::kDocuments:
      return {*std::prev(std::upper_bound(starts_.begin(), starts_.end(), q)), q + 1};
  }
  return {};
}

int64_t AttentionMask::Count(const IndexSet& q, const IndexSet& k) const {
  switch (kind_) {
    case Kind::kFull:
      return q.size() * k.size();
    case Kind::kCausal:
      return CountUpTo(q, k, 0);
    case Kind::kWindow:
      return CountUpTo(q, k, 0) - CountUpTo(q, k, -size_);
    case Kind::kPrefix:
      return q.size() * Between(k, 0, size_).size() + CountUpTo(q, Between(k, size_, kEndless), 0);
    case Kind::kDocuments:
      return CountInDocuments(q, k);
  }
  return 0;
}

int64_t AttentionMask::CountInDocuments(const IndexSet& q, const IndexSet& k) const {
  int64_t pairs = 0;
  IndexSet queries = q, keys = k;  // those not counted yet
  while (!queries.empty() && !keys.empty()) {
    // Documents before the one at `position` lack queries or keys.
    const int64_t position = std::max(queries.runs()[0].begin, keys.runs()[0].begin);
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), position);
    const int64_t begin = *std::prev(next), end = next == starts_.end() ? kEndless : *next;
    pairs += CountUpTo(Between(queries, begin, end), Between(keys, begin, end), 0);
    queries = Between(queries, end, kEndless);
    keys = Between(keys, end, kEndless);
  }
  return pairs;
}

BlockCase AttentionMask::Classify(const IndexSet& q, const IndexSet& k) const {
  const int64_t pairs = Count(q, k);
  if (pairs == 0) return BlockCase::kEmpty;
  if (pairs == q.size() * k.size()) return BlockCase::kFull;
  // Every other mask allows a subset or superset of causal's pairs: equal counts mean equal pairs.
  const bool as_causal = kind_ == Kind::kCausal || pairs == CountUpTo(q, k, 0);
  return as_causal && IsLowerTriangle(q, k) ? BlockCase::kDiagonal : BlockCase::kPartial;
}

absl::Status AttentionMask::CheckFits(int64_t length) const {
  const std::string sequence = absl::StrCat("the sequence has ", length, " positions; ");
  if (kind_ == Kind::kDocuments && starts_.back() >= length && starts_.back() > 0) {
    return InvalidArgument({"mask ", ToString(), ": ", sequence, "drop the documents behind it"});
  }
  if (kind_ != Kind::kPrefix || size_ <= length) return absl::OkStatus();
  return InvalidArgument({"mask ", ToString(), ": ", sequence, "take at most ",
                          absl::StrCat(length), ", or full, which shows as much"});
}

std::string AttentionMask::ToString() const {
  switch (kind_) {
    case Kind::kFull:
      return "full";
    case Kind::kCausal:
      return "causal";
    case Kind::kWindow:
      return absl::StrCat("window:", size_);
    case Kind::kPrefix:
      return absl::StrCat("prefix:", size_);
    case Kind::kDocuments:
      return absl::StrCat("documents:", absl::StrJoin(starts_, ","));
  }
  return "";
}

absl::StatusOr<AttentionMask> AttentionMask::Parse(absl::string_view text) {
  if (text == "full") return Full();
  if (text == "causal") return Causal();
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  if (parts.first != "window" && parts.first != "prefix" && parts.first != "documents") {
    return NoMask(text);
  }
  absl::StatusOr<std::vector<int64_t>> numbers = ParseNumbers(parts.second);
  if (!numbers.ok()) return NoMask(text);
  if (parts.first == "documents") return Documents(*std::move(numbers));
  if (numbers->size() != 1) return NoMask(text);
  return parts.first == "window" ? Window(numbers->front()) : Prefix(numbers->front());
}

}  // namespace dtensor
