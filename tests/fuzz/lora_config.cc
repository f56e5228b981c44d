// An adapter's configuration. What is read is valid, and is read again as it is written.
#include <cmath>

#include "dtensor/hugging_face/adapter.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {

void Try(absl::string_view input) {
  const absl::StatusOr<LoraOptions> read = LoraFromJson(input);
  if (!IsRead(read)) return;
  Require(read->rank >= 1 && read->alpha >= 0 && std::isfinite(read->alpha), "rank and alpha");
  Require(read->dropout >= 0 && read->dropout < 1, "dropout");
  const std::string text = LoraToJson(*read);
  const absl::StatusOr<LoraOptions> again = LoraFromJson(text);
  Require(again.ok() && LoraToJson(*again) == text, "what is written is read as it was");
}

}  // namespace dtensor::fuzz
