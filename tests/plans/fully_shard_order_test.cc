// FullyShard: when units are gathered, reduced and freed, seen by a communicator that records each
// exchange; and what that costs a rank of LLaMA-7B, counted by Simulate().
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAreArray;

using Events = std::vector<std::string>;

// Features between layers: each weight has a size of its own.
constexpr int64_t kDims[] = {8, 12, 16, 20, 24};
constexpr int kLayers = 4;

// Which layer's weight has so many elements on all ranks together.
int LayerOf(int64_t elements) {
  for (int i = 0; i < kLayers; ++i) {
    if (kDims[i] * kDims[i + 1] == elements) return i;
  }
  return -1;
}

// Hands all on, and writes down what begins and ends.
class RecordingCommunicator final : public Communicator {
 public:
  RecordingCommunicator(Communicator& world, Events& events) : world_(world), events_(events) {}

  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  absl::Status BeginExchange(const Collective& collective,
                             absl::Span<const ExchangePart> parts) override {
    const bool gathers = collective.kind == CollectiveKind::kAllGather;
    const int64_t elements = NumElements(parts[0].dst.shape()) * (gathers ? 1 : size());
    const std::string name = absl::StrCat(gathers ? "gather " : "reduce ", LayerOf(elements));
    events_.push_back("begin " + name);
    names_.emplace_back(&collective, name);
    return world_.Begin(collective, parts);
  }
  absl::Status FinishExchange(const Collective& collective) override {
    const auto begun = std::find_if(names_.begin(), names_.end(),
                                    [&](const auto& one) { return one.first == &collective; });
    events_.push_back("end " + begun->second);
    names_.erase(begun);
    return world_.Finish(collective);
  }
  void DropExchange(const Collective& collective, std::shared_ptr<const void> owner) override {
    world_.Drop(collective, std::move(owner));
  }
  absl::Status FinishDropped() override { return world_.FinishDropped(); }
  absl::Status Barrier(absl::string_view what) override { return world_.Barrier(what); }
  absl::Status Fail(const absl::Status& reason) override { return world_.Fail(reason); }
  absl::Status failure() const override { return world_.failure(); }

 private:
  Communicator& world_;
  Events& events_;
  std::vector<std::pair<const Collective*, std::string>> names_;
};

// Writes down when its layer is called.
class NotedLayer : public Module {
 public:
  NotedLayer(int layer, Events& events)
      : layer_(layer), events_(events), linear_(kDims[layer], kDims[layer + 1], 0.1) {
    AddChild("linear", &linear_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    events_.push_back(absl::StrCat("call ", layer_));
    return linear_(x);
  }

 private:
  const int layer_;
  Events& events_;
  LinearLayer linear_;
};

// Two micro-batches; what is written down is the second's.
absl::Status RunNoted(Communicator& world, Device& device, Events& forward, Events& backward) {
  Events events;
  RecordingCommunicator communicator(world, events);
  Context context(communicator, device);
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(absl::StrCat("dp=", world.size())));
  Sequential model;
  for (int i = 0; i < kLayers; ++i) model.Append(std::make_unique<NotedLayer>(i, events));
  const ParallelPlan plan({{"{0,1,2,3}", FullyShard("dp")}, {"", FullyShard("dp")}});
  DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {}));
  DT_ASSIGN_OR_RETURN(DistributedTensor x,
                      Full(context, mesh, {Shard(0)}, {world.size(), kDims[0]}, DType::kF32, 1));
  DT_RETURN_IF_ERROR(x.set_requires_grad(true));
  for (int micro = 0; micro < 2; ++micro) {
    events.clear();
    const TensorOr loss = Sum(model(x), {0, 1});
    DT_RETURN_IF_ERROR(loss.status());
    if (world.rank() == 0) forward = events;
    events.clear();
    DT_RETURN_IF_ERROR(Backward(loss));
    if (world.rank() == 0) backward = events;
  }
  context.ForgetReads();
  return absl::OkStatus();
}

TEST(FullyShardOrder, UnitsAreGatheredOneAheadAndReducedBehind) {
  const Events forward_expected = {
      "begin gather 0", "end gather 0",   "begin gather 1", "call 0",  //
      "end gather 1",   "begin gather 2", "call 1",                    //
      "end gather 2",   "begin gather 3", "call 2",                    //
      "end gather 3",   "call 3",
  };
  const Events backward_expected = {
      "begin gather 3", "end gather 3",   "begin gather 2", "begin reduce 3", "end reduce 3",
      "end gather 2",   "begin gather 1", "begin reduce 2", "end reduce 2",  //
      "end gather 1",   "begin gather 0", "begin reduce 1", "end reduce 1",  //
      "end gather 0",   "begin reduce 0", "end reduce 0",
  };
  for (const bool simulated : {false, true}) {
    Events forward, backward;
    const auto run = [&](Communicator& world, Device& device) {
      return RunNoted(world, device, forward, backward);
    };
    EXPECT_THAT(simulated ? RunSimulatedRank(0, 4, run) : RunLocalRanks(4, run), IsOk());
    EXPECT_THAT(forward, ElementsAreArray(forward_expected));
    EXPECT_THAT(backward, ElementsAreArray(backward_expected));
  }
}

// --- LLaMA-7B, one token for each of 8 ranks.

constexpr int64_t kRanks = 8, kElement = 2;
constexpr int64_t kBlock = 202383360, kLargest = 11008 * 4096;  // a block, and its largest weight
constexpr int64_t kTable = 32000 * 4096, kNorm = 4096, kBlocks = 32;
constexpr int64_t kAll = kBlocks * kBlock + 2 * kTable + kNorm;  // parameters

struct Counted {
  int64_t parameters = 0, saved = 0, forward_peak = 0, backward_peak = 0, gradients = 0;
  int64_t gathered = 0, reduced = 0;  // bytes received
};

absl::Status Count(Context& context, bool f32_gradients, Counted& out) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(absl::StrCat("dp=", kRanks)));
  Device& device = context.device();
  const auto live = [&] { return device.memory().live_bytes; };
  TransformerConfig config;
  config.vocab = 32000;
  config.dim = 4096;
  config.hidden = 11008;
  config.layers = kBlocks;
  config.heads = config.kv_heads = 32;
  const int64_t empty = live();
  Transformer model(config);
  model.SetDType(DType::kBF16);
  DT_RETURN_IF_ERROR(ParallelPlan({{"model.layers.*", FullyShard("dp")},
                                   {"{model.embed_tokens,lm_head}", FullyShard("dp")},
                                   {"", FullyShard("dp")}})
                         .Apply(model, context, mesh, {}));
  if (f32_gradients) {
    for (DistributedTensor& parameter : model.Parameters()) {
      DT_RETURN_IF_ERROR(parameter.set_grad_dtype(DType::kF32));
    }
  }
  out.parameters = live() - empty;
  const TensorOr ids = Full(context, Layout::Replicated(mesh, 2), {kRanks, 1}, DType::kI32, 0);
  device.ResetPeak();
  TensorOr loss = Mean(CrossEntropy(model(ids), ids), {0, 1});
  DT_RETURN_IF_ERROR(loss.status());
  out.forward_peak = device.memory().peak_bytes - empty;
  out.saved = live() - empty - out.parameters;
  device.ResetPeak();
  DT_RETURN_IF_ERROR(Backward(loss));
  loss = DistributedTensor();
  out.backward_peak = device.memory().peak_bytes - empty;
  out.gradients = live() - empty - out.parameters;
  for (const auto& [key, traffic] : context.communicator().traffic()) {
    const bool gathers = key.second == CollectiveKind::kAllGather;
    (gathers ? out.gathered : out.reduced) += traffic.bytes;
  }
  return absl::OkStatus();
}

Counted CountOf(bool f32_gradients) {
  Counted counted;
  EXPECT_THAT(
      Simulate(0, kRanks, [&](Context& context) { return Count(context, f32_gradients, counted); }),
      IsOk());
  return counted;
}

void ExpectWithin1Percent(int64_t counted, int64_t expected, const std::string& what) {
  EXPECT_NEAR(static_cast<double>(counted), static_cast<double>(expected),
              static_cast<double>(expected) / 100)
      << what;
}

TEST(FullyShardOf7B, ARankHoldsAnEighthAndTwoBlocks) {
  const Counted counted = CountOf(false);
  EXPECT_EQ(counted.parameters, kAll / kRanks * kElement);
  EXPECT_LT(counted.saved, kBlock * kElement / 20);  // activations, and no weight
  ExpectWithin1Percent(counted.forward_peak, counted.parameters + 2 * kBlock * kElement, "forward");
  // In the last block but one, when all after it have their gradients. A block's gradients take the
  // place of its gathered weights, one weight after the other.
  const int64_t reduced = (kTable + kNorm + (kBlocks - 2) * kBlock) / kRanks * kElement;
  ExpectWithin1Percent(counted.backward_peak,
                       counted.parameters + reduced + (2 * kBlock + kLargest) * kElement,
                       "backward");
  ExpectWithin1Percent(counted.gradients, kAll / kRanks * kElement, "gradients");
}

// All but the table, which backward does not read, three times.
TEST(FullyShardOf7B, MovesTheTypesThatTravel) {
  const Counted narrow = CountOf(false), wide = CountOf(true);
  const int64_t others = kRanks - 1;
  for (const Counted& counted : {narrow, wide}) {
    EXPECT_EQ(counted.gathered, (2 * kAll - kTable) / kRanks * others * kElement);
  }
  EXPECT_EQ(narrow.reduced, kAll / kRanks * others * kElement);
  EXPECT_EQ(wide.reduced, kAll / kRanks * others * 4);
  ExpectWithin1Percent(wide.gradients, kAll / kRanks * 4, "f32 gradients");
}

}  // namespace
}  // namespace dtensor
