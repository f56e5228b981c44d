// Where a GPU was promised (DTENSOR_REQUIRE_GPU is set, as --config=gpu does), a skipped test
// fails: it would otherwise count as passed, and a broken driver would look like success.

#include <cstdlib>

#include "gtest/gtest.h"

namespace {

class SkippedMeansFailed : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& test) override {
    if (test.result()->Skipped()) ADD_FAILURE() << "skipped, although DTENSOR_REQUIRE_GPU is set";
  }
};

[[maybe_unused]] const bool kListening = [] {
  if (std::getenv("DTENSOR_REQUIRE_GPU") == nullptr) return false;
  testing::UnitTest::GetInstance()->listeners().Append(new SkippedMeansFailed);  // which owns it
  return true;
}();

}  // namespace
