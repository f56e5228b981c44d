#include "dtensor/nn/optim/sgd.h"

#include <cmath>
#include <limits>
#include <vector>

#include "dtensor/nn/testing/small_problem.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

using Values = std::vector<double>;

const SgdOptions kOptions[] = {
    {},
    {.weight_decay = 0.3},
    {.momentum = 0.9},
    {.momentum = 0.9, .dampening = 0.25, .weight_decay = 0.3},
    {.momentum = 0.9, .weight_decay = 0.3, .nesterov = true},
};

// The formula of the header, step for step.
struct Reference {
  SgdOptions options;
  Values p, buffer = Values(p.size());

  void Step(int t, double lr, const Values& gradient) {
    for (size_t i = 0; i < p.size(); ++i) {
      double g = gradient[i] + options.weight_decay * p[i];
      if (options.momentum != 0) {
        buffer[i] = t == 1 ? g : options.momentum * buffer[i] + (1 - options.dampening) * g;
        g = options.nesterov ? g + options.momentum * buffer[i] : buffer[i];
      }
      p[i] -= lr * g;
    }
  }
};

void ExpectNear(const DistributedTensor& tensor, const Values& want) {
  const auto values = SmallValues(tensor);
  ASSERT_THAT(values, IsOk());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR((*values)[i], want[i], 1e-12) << i;
}

absl::Status Follow(Context& context, const SmallPlace& place, const SgdOptions& options) {
  DT_ASSIGN_OR_RETURN(const DistributedTensor p,
                      SmallParameter(context, place, {4, 3}, DType::kF64, SomeValues(12, 1)));
  Reference want{options, SomeValues(12, 1)};
  DT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Create({SgdGroup{{p}, options, 0.5}}));
  for (int t = 1; t <= 5; ++t) {
    DT_RETURN_IF_ERROR(AddSmallGradient(p, SomeValues(12, 10 + t)));
    DT_RETURN_IF_ERROR(sgd.Step(0.2));
    sgd.ClearGradients();
    want.Step(t, 0.1, SomeValues(12, 10 + t));
  }
  ExpectNear(p, want.p);
  DT_ASSIGN_OR_RETURN(const OptimizerState state, sgd.State(p));
  EXPECT_EQ(state.count("momentum_buffer"), options.momentum != 0 ? 1 : 0);
  if (options.momentum != 0) ExpectNear(state.at("momentum_buffer"), want.buffer);
  return absl::OkStatus();
}

TEST(Sgd, FollowsTheFormulaOnEveryMesh) {
  for (const SmallPlace& place : SmallPlaces()) {
    for (const SgdOptions& options : kOptions) {
      SCOPED_TRACE(place.ToString());
      EXPECT_THAT(RunAt(place, [&](Context& context) { return Follow(context, place, options); }),
                  IsOk());
    }
  }
}

// Sixteen steps of 1/16 of what bf16 can tell from 1.
TEST(Sgd, MasterWeightsKeepSmallSteps) {
  for (const SmallPlace& place : SmallPlaces()) {
    for (const bool master : {true, false}) {
      EXPECT_THAT(
          RunAt(place,
                [&](Context& context) -> absl::Status {
                  DT_ASSIGN_OR_RETURN(
                      const DistributedTensor p,
                      SmallParameter(context, place, {4, 3}, DType::kBF16, Values(12, 1)));
                  DT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Create({p}, {.master_weights = master}));
                  for (int t = 1; t <= 16; ++t) {
                    DT_RETURN_IF_ERROR(AddSmallGradient(p, Values(12, 1)));
                    DT_RETURN_IF_ERROR(sgd.Step(0x1p-12));
                    sgd.ClearGradients();
                  }
                  EXPECT_THAT(SmallValues(p), IsOkAndHolds(Values(12, master ? 1 - 0x1p-8 : 1)));
                  return absl::OkStatus();
                }),
          IsOk());
    }
  }
}

TEST(Sgd, RefusesOptionsOutOfRange) {
  for (const SgdOptions& options :
       {SgdOptions{.momentum = -1}, SgdOptions{.dampening = HUGE_VAL},
        SgdOptions{.weight_decay = std::numeric_limits<double>::quiet_NaN()},
        SgdOptions{.nesterov = true},
        SgdOptions{.momentum = 0.9, .dampening = 0.1, .nesterov = true}}) {
    EXPECT_THAT(Sgd::Create(std::vector<DistributedTensor>(), options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Sgd: ")));
  }
}

}  // namespace
}  // namespace dtensor
