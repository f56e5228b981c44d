// A mask, and below it the positions of some queries and of some keys: "##..#" is 0, 1 and 4.
#include "dtensor/runtime/core/attention_mask.h"

#include <algorithm>
#include <string>
#include <vector>

#include "dtensor/runtime/core/index_set.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

std::vector<int64_t> Positions(absl::string_view line) {
  constexpr size_t kMost = 200;
  std::vector<int64_t> positions;
  for (size_t i = 0; i < std::min(line.size(), kMost); ++i) {
    if (line[i] == '#') positions.push_back(static_cast<int64_t>(i));
  }
  return positions;
}

IndexSet SetOf(const std::vector<int64_t>& positions) {
  std::vector<IndexRun> runs;
  for (const int64_t position : positions) runs.push_back({position, 1, 0, 1});
  return IndexSet::FromIntervals(runs);
}

void TryBlock(const AttentionMask& mask, const std::vector<int64_t>& queries,
              const std::vector<int64_t>& keys) {
  int64_t allowed = 0;
  bool diagonal = queries.size() == keys.size();
  for (size_t i = 0; i < queries.size(); ++i) {
    for (size_t j = 0; j < keys.size(); ++j) {
      const bool allows = mask.Allows(queries[i], keys[j]);
      allowed += allows;
      diagonal = diagonal && allows == (j <= i);
    }
  }
  const IndexSet q = SetOf(queries), k = SetOf(keys);
  Require(mask.Count(q, k) == allowed, "pairs are counted");
  const BlockCase block_case = mask.Classify(q, k);
  const auto pairs = static_cast<int64_t>(queries.size() * keys.size());
  Require((block_case == BlockCase::kEmpty) == (allowed == 0), "an empty block");
  if (block_case == BlockCase::kFull) Require(allowed == pairs, "a full block");
  if (block_case == BlockCase::kDiagonal) Require(diagonal, "a diagonal block");
}

}  // namespace

void Try(absl::string_view input) {
  const std::vector<absl::string_view> lines = Lines(input, 3);
  const absl::StatusOr<AttentionMask> mask = AttentionMask::Parse(lines[0]);
  if (!IsRead(mask)) return;
  const std::string text = mask->ToString();
  RequireSame(*mask, AttentionMask::Parse(text), text);
  for (const int64_t length : {int64_t{0}, int64_t{100}}) {
    if (const absl::Status fits = mask->CheckFits(length); !fits.ok()) RequireRefusal(fits);
  }
  TryBlock(*mask, Positions(lines[1]), Positions(lines[2]));
}

}  // namespace dtensor::fuzz
