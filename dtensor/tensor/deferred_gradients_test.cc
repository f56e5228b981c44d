// BackwardForInputs and Finish: together they are Backward, bit for bit, wherever the gradients of
// weights are put off.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/gather_again.h"
#include "dtensor/tensor/gather_group.h"
#include "dtensor/tensor/recompute.h"
#include "dtensor/tensor/testing/leaf.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;
using Values = std::vector<double>;

enum class Way { kWhole, kInTwoParts };

absl::Status BackwardBy(Way way, const TensorOr& loss, const BackwardOptions& options = {}) {
  if (way == Way::kWhole) return Backward(loss, options);
  DT_ASSIGN_OR_RETURN(DeferredGradients deferred, BackwardForInputs(loss, options));
  return deferred.Finish();
}

// A network of four products on dp=2,tp=2, as a sequence-parallel block has them: one weight is
// read twice, two have biases, and one is read by no product.
struct Setting {
  std::optional<ShardLevel> level;  // of a gather group with all weights
  bool gathers_again = false;       // activations
  bool recomputes = false;
  int64_t bucket_bytes = 0;
  int chunks = 0;
  bool adds = false;  // the leaves have gradients before
};

class Network {
 public:
  static absl::StatusOr<std::unique_ptr<Network>> Create(Context& context, const Setting& setting) {
    auto net = std::make_unique<Network>();
    net->setting_ = setting;
    DT_ASSIGN_OR_RETURN(net->mesh_, DeviceMesh::Parse("dp=2,tp=2"));
    const auto add = [&](const std::vector<Placement>& placements,
                         const Dims& shape) -> absl::Status {
      DT_ASSIGN_OR_RETURN(auto leaf, Leaf(context, net->mesh_, placements, shape,
                                          static_cast<uint64_t>(net->leaves_.size() + 1)));
      leaf.set_pinned(true);
      net->leaves_.push_back(std::move(leaf));
      return absl::OkStatus();
    };
    const bool groups = setting.level.has_value();
    const auto rests = [&](int dim) { return groups ? Placement(Shard(dim)) : Replicate(); };
    DT_RETURN_IF_ERROR(add({rests(1), Shard(0)}, {8, 6}));     // up
    DT_RETURN_IF_ERROR(add({Replicate(), Shard(0)}, {8}));     // its bias
    DT_RETURN_IF_ERROR(add({rests(0), Shard(1)}, {6, 8}));     // down
    DT_RETURN_IF_ERROR(add({Replicate(), Replicate()}, {6}));  // scale, of no product
    if (!groups) return net;
    net->groups_ = GatherGroups::New();
    const auto group = net->groups_->Add(*setting.level);
    DT_RETURN_IF_ERROR(group->Add(net->leaves_[0], *Layout::Parse(net->mesh_, "[tp] []")));
    DT_RETURN_IF_ERROR(group->Add(net->leaves_[2], *Layout::Parse(net->mesh_, "[] [tp]")));
    return net;
  }

  TensorOr Loss(Context& context, double value) const {
    DT_ASSIGN_OR_RETURN(const auto x,
                        Full(context, mesh_, {Shard(0), Shard(1)}, {4, 4, 6}, DType::kF64, value));
    const auto block = [this](absl::Span<const DistributedTensor> in) -> TensorsOr {
      const Layout gathered = *Layout::Parse(mesh_, "[dp] [] []");
      DT_ASSIGN_OR_RETURN(const auto whole, setting_.gathers_again
                                                ? RedistributeForUse(in[0], gathered)
                                                : in[0].Redistribute(gathered));
      const TensorOr h = Tanh(Linear(whole, ForUse(leaves_[0]), leaves_[1]));
      const TensorOr twice = Linear(whole, ForUse(leaves_[0]));
      DT_ASSIGN_OR_RETURN(const auto y, Linear(Mul(h, twice), ForUse(leaves_[2])));
      DT_ASSIGN_OR_RETURN(auto out, Mul(y.Redistribute(in[0].layout()), leaves_[3]));
      return std::vector<DistributedTensor>{std::move(out)};
    };
    std::vector<DistributedTensor> now = {x};
    for (int i = 0; i < 2; ++i) {
      DT_ASSIGN_OR_RETURN(now, setting_.recomputes ? Recompute(now, block) : block(now));
    }
    return Sum(Mul(now[0], now[0]), {0, 1, 2});
  }

  const std::vector<DistributedTensor>& leaves() const { return leaves_; }

 private:
  Setting setting_;
  DeviceMesh mesh_;
  std::vector<DistributedTensor> leaves_;
  std::shared_ptr<GatherGroups> groups_;
};

absl::StatusOr<Values> LocalValues(const DistributedTensor& x) {
  DT_ASSIGN_OR_RETURN(const Tensor copy, kernels::Duplicate(x.context().device(), x.local()));
  return Values(copy.data<double>(), copy.data<double>() + copy.numel());
}

// This rank's parts of the gradients, unreduced where Backward leaves them so, and their layouts;
// and what moved in Backward.
struct Outcome {
  std::vector<Values> gradients;
  std::vector<std::string> layouts;
  TrafficTable traffic;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

absl::StatusOr<Outcome> Train(Context& context, const Setting& setting, Way way) {
  DT_ASSIGN_OR_RETURN(const auto net, Network::Create(context, setting));
  if (setting.adds) DT_RETURN_IF_ERROR(Backward(net->Loss(context, 0.3)));
  const TensorOr loss = net->Loss(context, 0.7);
  context.communicator().ResetTraffic();
  DT_RETURN_IF_ERROR(BackwardBy(way, loss, {.bucket_bytes = setting.bucket_bytes}));
  Outcome outcome = {.traffic = context.communicator().traffic()};
  for (const DistributedTensor& leaf : net->leaves()) {
    const DistributedTensor gradient = leaf.grad();
    outcome.layouts.push_back(gradient.layout().ToString());
    DT_ASSIGN_OR_RETURN(outcome.gradients.emplace_back(), LocalValues(gradient));
  }
  return outcome;
}

TEST(BackwardForInputs, AndFinishAreBackward) {
  std::vector<Setting> settings;
  for (const bool recomputes : {false, true}) {
    for (const bool gathers_again : {false, true}) {
      for (const auto level :
           {std::optional<ShardLevel>(), std::optional(ShardLevel::kOptimizer),
            std::optional(ShardLevel::kGradients), std::optional(ShardLevel::kParameters)}) {
        settings.push_back({level, gathers_again, recomputes});
      }
    }
  }
  settings.push_back({.bucket_bytes = 100});
  settings.push_back({.bucket_bytes = 100, .adds = true});
  settings.push_back({.level = ShardLevel::kParameters, .adds = true});
  settings.push_back({.chunks = 2});
  settings.push_back({.gathers_again = true, .chunks = 2, .adds = true});
  for (const Setting& setting : settings) {
    const ContextOptions contexts = {.overlap = {.chunks = setting.chunks, .min_bytes = 0}};
    DT_EXPECT_OK(RunRanks(
        4,
        [&](Context& context) -> absl::Status {
          DT_ASSIGN_OR_RETURN(const Outcome whole, Train(context, setting, Way::kWhole));
          DT_ASSIGN_OR_RETURN(const Outcome parts, Train(context, setting, Way::kInTwoParts));
          EXPECT_EQ(whole, parts) << setting.recomputes << setting.gathers_again
                                  << static_cast<int>(setting.level.value_or(ShardLevel()))
                                  << setting.bucket_bytes << ' ' << setting.chunks << setting.adds;
          return absl::OkStatus();
        },
        {}, contexts));
  }
}

TEST(BackwardForInputs, TouchesNoLeafBeforeFinish) {
  DT_EXPECT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto net, Network::Create(context, {}));
    DT_ASSIGN_OR_RETURN(DeferredGradients one, BackwardForInputs(net->Loss(context, 0.7)));
    for (const DistributedTensor& leaf : net->leaves()) EXPECT_FALSE(leaf.grad().defined());
    { DT_RETURN_IF_ERROR(BackwardForInputs(net->Loss(context, 0.3)).status()); }  // dropped
    DT_RETURN_IF_ERROR(one.Finish());
    DT_ASSIGN_OR_RETURN(const Outcome whole, Train(context, {}, Way::kWhole));
    DT_ASSIGN_OR_RETURN(const Values up, LocalValues(net->leaves()[0].grad()));
    EXPECT_EQ(up, whole.gradients[0]);
    DT_RETURN_IF_ERROR(one.Finish());  // nothing is left
    DT_RETURN_IF_ERROR(DeferredGradients().Finish());
    DT_ASSIGN_OR_RETURN(const Values again, LocalValues(net->leaves()[0].grad()));
    EXPECT_EQ(again, up);
    return absl::OkStatus();
  }));
}

// y = tanh(x w1) w2 with products of 2 n^3 operations each: what waits for Finish() is the
// gradients of both weights, and of nothing else.
TEST(BackwardForInputs, PutsOffWhatWeightsCost) {
  constexpr int64_t kSize = 256;
  DT_EXPECT_OK(Simulate(0, 1, [](Context& context) -> absl::Status {
    const Layout whole = Layout::Replicated(DeviceMesh(), 2);
    std::vector<DistributedTensor> all;
    for (int i = 0; i < 3; ++i) {
      DT_ASSIGN_OR_RETURN(auto one, Full(context, whole, {kSize, kSize}, DType::kF32, 1));
      DT_RETURN_IF_ERROR(one.set_requires_grad(true));
      all.push_back(std::move(one));
    }
    DT_ASSIGN_OR_RETURN(const auto x, Tanh(all[0]));
    const TensorOr loss = Sum(MatMul(Tanh(MatMul(x, all[1])), all[2]), {0, 1});
    const auto seconds = [&] { return context.simulated_clock()->time().compute_seconds; };
    const double before = seconds();
    DT_ASSIGN_OR_RETURN(DeferredGradients deferred, BackwardForInputs(loss));
    const double middle = seconds();
    DT_RETURN_IF_ERROR(deferred.Finish());
    const double weights = seconds() - middle, inputs = middle - before;
    EXPECT_GT(weights, 0.8 * inputs);
    EXPECT_LT(weights, 1.2 * inputs);
    return absl::OkStatus();
  }));
}

TEST(BackwardForInputs, RefusesWhatCannotBe) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const Layout whole = Layout::Replicated(*DeviceMesh::Parse("dp=2"), 2);
    DT_ASSIGN_OR_RETURN(auto x, Full(context, whole, {2, 2}, DType::kF32, 1));
    DT_ASSIGN_OR_RETURN(auto w, Full(context, whole, {2, 2}, DType::kF32, 2));
    DT_RETURN_IF_ERROR(w.set_requires_grad(true));
    const TensorOr loss = Sum(MatMul(x, w), {0, 1});
    EXPECT_THAT(BackwardForInputs(loss, {.retain_graph = true}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("retain_graph")));
    DT_ASSIGN_OR_RETURN(DeferredGradients deferred, BackwardForInputs(loss));
    EXPECT_THAT(Backward(loss), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("walked by an earlier Backward")));
    // The gradient of w is made from x.
    DT_RETURN_IF_ERROR(BeforeWrite(x));
    DT_RETURN_IF_ERROR(kernels::Fill(context.device(), x.local(), 5));
    EXPECT_THAT(deferred.Finish(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("operand 0 of MatMul")));
    EXPECT_FALSE(w.grad().defined());
    EXPECT_FALSE(deferred.Finish().ok());  // no gradient came of it
    // w itself may be written to: nothing that is left reads it.
    DT_ASSIGN_OR_RETURN(deferred, BackwardForInputs(Sum(MatMul(x, w), {0, 1})));
    DT_RETURN_IF_ERROR(BeforeWrite(w));
    DT_RETURN_IF_ERROR(kernels::Fill(context.device(), w.local(), 9));
    DT_RETURN_IF_ERROR(deferred.Finish());
    EXPECT_THAT(*ToGlobal<float>(w.grad()), testing::Each(10));
    // A given gradient is taken as it is now.
    DT_ASSIGN_OR_RETURN(const auto given, Full(context, whole, {2, 2}, DType::kF32, 1));
    w.ClearGrad();
    DT_ASSIGN_OR_RETURN(deferred, BackwardForInputs(MatMul(x, w), {.gradient = given}));
    DT_RETURN_IF_ERROR(BeforeWrite(given));
    DT_RETURN_IF_ERROR(kernels::Fill(context.device(), given.local(), 3));
    DT_RETURN_IF_ERROR(deferred.Finish());
    EXPECT_THAT(*ToGlobal<float>(w.grad()), testing::Each(10));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
