// Where so many GPUs were promised (DTENSOR_REQUIRE_GPU, which --config=gpu sets to 1), a skipped
// test fails: it would otherwise count as passed, and a broken driver would look like success. But
// for a test that needs more of them than that, and says so: RecordProperty("needs_gpus", 2). So
// does a program whose Environment skips all of its tests, of which none then begins or ends.

#include <cstdlib>
#include <cstring>

#include "gtest/gtest.h"

namespace {

class SkippedMeansFailed : public testing::EmptyTestEventListener {
  void OnEnvironmentsSetUpEnd(const testing::UnitTest& program) override {
    if (!program.ad_hoc_test_result().Skipped()) return;
    ADD_FAILURE() << "all tests are skipped, although DTENSOR_REQUIRE_GPU is set";
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (!test.result()->Skipped() || Needs(test) > std::atoi(std::getenv("DTENSOR_REQUIRE_GPU"))) {
      return;
    }
    ADD_FAILURE() << "skipped, although DTENSOR_REQUIRE_GPU is set";
  }
  static int Needs(const testing::TestInfo& test) {
    for (int i = 0; i < test.result()->test_property_count(); ++i) {
      const testing::TestProperty& property = test.result()->GetTestProperty(i);
      if (std::strcmp(property.key(), "needs_gpus") == 0) return std::atoi(property.value());
    }
    return 1;
  }
};

[[maybe_unused]] const bool kListening = [] {
  if (std::getenv("DTENSOR_REQUIRE_GPU") == nullptr) return false;
  testing::UnitTest::GetInstance()->listeners().Append(new SkippedMeansFailed);  // which owns it
  return true;
}();

}  // namespace
