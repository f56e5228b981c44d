// CrossEntropy's options, and means over the tokens that are not ignored, against the formula of
// ops.h, with sharded classes and sharded tokens.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/testing/op_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::IsNan;
using ::testing::Pointwise;

auto Near(double error = 1e-13) { return testing::DoubleNear(error); }

constexpr int64_t kTokens = 5, kColumns = 7, kIgnore = 2;

// Logits [5, 7] and targets below 5, one of which is ignored.
std::vector<double> Logits() {
  std::vector<double> x(kTokens * kColumns);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 3 * std::sin(static_cast<double>(5 * i));
  return x;
}
const std::vector<double>& Targets() {
  static const auto* const targets = new std::vector<double>{4, kIgnore, 0, 1, 3};
  return *targets;
}

struct Reference {
  std::vector<double> losses, gradients;  // the gradients of the sum of losses
  double mean = 0;
  int64_t count = 0;
};

// Term by term: minus the log probability of each class, times what is wanted of it.
Reference Evaluate(const CrossEntropyOptions& options) {
  const int64_t classes = options.classes == 0 ? kColumns : options.classes;
  const std::vector<double> x = Logits();
  Reference out;
  for (int64_t t = 0; t < kTokens; ++t) {
    const auto target = static_cast<int64_t>(Targets()[t]);
    const bool counts = target != options.ignore;
    double sum = 0, loss = 0;
    for (int64_t j = 0; j < classes; ++j) sum += std::exp(x[t * kColumns + j]);
    for (int64_t j = 0; j < kColumns; ++j) {
      const double wanted = (j == target ? 1 - options.label_smoothing : 0) +
                            options.label_smoothing / static_cast<double>(classes);
      const double log = x[t * kColumns + j] - std::log(sum);
      if (j < classes && counts) loss -= wanted * log;
      out.gradients.push_back(j < classes && counts ? std::exp(log) - wanted : 0);
    }
    out.losses.push_back(loss);
    out.mean += loss;
    out.count += counts ? 1 : 0;
  }
  out.mean /= static_cast<double>(out.count);
  return out;
}

// Classes sharded, tokens sharded, both, neither; unevenly, and dealt out.
struct Case {
  const char *mesh, *logits, *targets;
};
constexpr Case kCases[] = {
    {"a=1", "[] []", "[]"},        {"a=3", "[] [a]", "[]"},       {"a=2", "[a] []", "[a]"},
    {"a=4", "[a] []", "[a]"},      {"a=8", "[] [a]", "[]"},       {"a=2,b=2", "[a] [b]", "[a]"},
    {"a=2,b=3", "[] [a,b]", "[]"}, {"a=2,b=2", "[a,b] []", "[]"},
};

using Body =
    std::function<absl::Status(const DistributedTensor& logits, const DistributedTensor& targets)>;
void InAllCases(const Body& body, const std::vector<double>& targets = Targets()) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(absl::StrCat(c.mesh, ": ", c.logits));
    DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse(c.mesh));
    DT_EXPECT_OK(RunRanks(mesh.size(), [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const Layout first, Layout::Parse(mesh, c.logits));
      DT_ASSIGN_OR_RETURN(const Layout second, Layout::Parse(mesh, c.targets));
      DT_ASSIGN_OR_RETURN(auto logits,
                          Place(context, first, {kTokens, kColumns}, DType::kF64, Logits(), 1));
      DT_RETURN_IF_ERROR(logits.set_requires_grad(true));
      DT_ASSIGN_OR_RETURN(const auto ids,
                          Place(context, second, {kTokens}, DType::kI64, targets, 1));
      return body(logits, ids);
    }));
  }
}

const std::vector<CrossEntropyOptions>& AllOptions() {
  static const auto* const options = new std::vector<CrossEntropyOptions>{
      {},
      {.ignore = kIgnore},
      {.label_smoothing = .1},
      {.ignore = kIgnore, .label_smoothing = .4},
      {.label_smoothing = 1},
      {.classes = 5},
      {.ignore = kIgnore, .label_smoothing = .3, .classes = 5},
  };
  return *options;
}

TEST(CrossEntropyTest, LossesAndGradients) {
  for (const CrossEntropyOptions& options : AllOptions()) {
    const Reference want = Evaluate(options);
    InAllCases([&](const auto& logits, const auto& targets) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const auto losses, CrossEntropy(logits, targets, options));
      DT_ASSIGN_OR_RETURN(const auto values, GlobalValues(losses));
      EXPECT_THAT(values, Pointwise(Near(), want.losses));
      DT_RETURN_IF_ERROR(Backward(Sum(losses, {0})));
      DT_ASSIGN_OR_RETURN(const auto gradient, GlobalValues(logits.grad()));
      EXPECT_THAT(gradient, Pointwise(Near(), want.gradients));
      return absl::OkStatus();
    });
  }
}

// Not the mean of ranks' means, nor over all tokens.
TEST(CrossEntropyTest, AMeanIsOverWhatIsNotIgnoredOnAllRanks) {
  for (const CrossEntropyOptions& options : AllOptions()) {
    Reference want = Evaluate(options);
    for (double& gradient : want.gradients) gradient /= static_cast<double>(want.count);
    InAllCases([&](const auto& logits, const auto& targets) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const auto mean, CrossEntropyMean(logits, targets, options));
      EXPECT_EQ(mean.layout().ToString(), "scalar");
      DT_ASSIGN_OR_RETURN(const auto value, GlobalValues(mean));
      EXPECT_NEAR(value[0], want.mean, 1e-13);
      DT_RETURN_IF_ERROR(Backward(mean));
      DT_ASSIGN_OR_RETURN(const auto gradient, GlobalValues(logits.grad()));
      EXPECT_THAT(gradient, Pointwise(Near(), want.gradients));
      return absl::OkStatus();
    });
  }
}

TEST(CrossEntropyTest, AMeanOfNothingIsNoNumber) {
  const auto all_ignored = std::vector<double>(kTokens, -100);
  InAllCases(
      [&](const auto& logits, const auto& targets) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const auto mean, CrossEntropyMean(logits, targets));
        DT_ASSIGN_OR_RETURN(const auto value, GlobalValues(mean));
        EXPECT_THAT(value, Each(IsNan()));
        DT_RETURN_IF_ERROR(Backward(mean));
        DT_ASSIGN_OR_RETURN(const auto gradient, GlobalValues(logits.grad()));
        EXPECT_THAT(gradient, Each(0));
        return absl::OkStatus();
      },
      all_ignored);
}

// The differences of logits are the same numbers, also where classes are sharded.
TEST(CrossEntropyTest, ANumberInAllLogitsChangesNothing) {
  for (const CrossEntropyOptions& options : AllOptions()) {
    InAllCases([&](const auto& like, const auto& targets) -> absl::Status {
      std::vector<std::vector<double>> losses, gradients;
      for (const double offset : {0., 0x1p48}) {
        std::vector<double> x(kTokens * kColumns);
        for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i * 37 % 50) / 16 + offset;
        DT_ASSIGN_OR_RETURN(auto logits,
                            Place(like.context(), like.layout(), like.shape(), DType::kF64, x, 1));
        DT_RETURN_IF_ERROR(logits.set_requires_grad(true));
        DT_ASSIGN_OR_RETURN(const auto loss, CrossEntropy(logits, targets, options));
        DT_ASSIGN_OR_RETURN(losses.emplace_back(), GlobalValues(loss));
        DT_RETURN_IF_ERROR(Backward(Sum(loss, {0})));
        DT_ASSIGN_OR_RETURN(gradients.emplace_back(), GlobalValues(logits.grad()));
      }
      EXPECT_EQ(losses[0], losses[1]);
      EXPECT_EQ(gradients[0], gradients[1]);
      return absl::OkStatus();
    });
  }
}

// A target that is a padded column is none of the classes.
TEST(CrossEntropyTest, ATargetAmongThePaddingEndsTheWorld) {
  const absl::Status status = RunRanks(1, [](Context& context) -> absl::Status {
    const Layout whole = Layout::Replicated(DeviceMesh(), 2), row = Layout::Replicated({}, 1);
    DT_ASSIGN_OR_RETURN(const auto x, Full(context, whole, {1, 4}, DType::kF32, 0));
    DT_ASSIGN_OR_RETURN(const auto targets, Full(context, row, {1}, DType::kI64, 3));
    DT_ASSIGN_OR_RETURN(const auto y, CrossEntropy(x, targets, {.classes = 3}));
    return ToGlobal<float>(y).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kOutOfRange, testing::HasSubstr("[0, 3)")));
}

}  // namespace
}  // namespace dtensor
