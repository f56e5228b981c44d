// The schedule of a learning rate. Its printed text reads back as the same schedule.
#include "dtensor/nn/optim/lr_schedule.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {

void Try(absl::string_view input) {
  const absl::StatusOr<LrSchedule> read = LrSchedule::Parse(input);
  if (!IsRead(read)) return;
  RequireSame(*read, LrSchedule::Parse(read->ToString()), read->ToString());
  for (const int64_t step :
       {int64_t{0}, int64_t{1}, int64_t{1000}, std::numeric_limits<int64_t>::max()}) {
    Require(!std::isnan(read->At(step)), "each step has a rate");
  }
}

}  // namespace dtensor::fuzz
