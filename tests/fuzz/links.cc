// The table that dtensor links prints.
#include <cmath>
#include <string>

#include "absl/strings/str_split.h"
#include "dtensor/redistribution/cost_model.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

void RequireUsable(const LinkSpeed& link) {
  Require(std::isfinite(link.latency_us) && link.latency_us >= 0, "a latency can be added");
  Require(std::isfinite(link.gb_per_second) && link.gb_per_second > 0, "a rate can divide");
}

}  // namespace

void Try(absl::string_view input) {
  const absl::StatusOr<CostModel> links = CostModel::Parse(input);
  if (!IsRead(links)) return;
  const std::string text = links->ToString();
  RequireSame(*links, CostModel::Parse(text), text);
  RequireUsable(links->Of("no axis has this name"));
  for (const absl::string_view word : absl::StrSplit(input, ' ')) RequireUsable(links->Of(word));
}

}  // namespace dtensor::fuzz
