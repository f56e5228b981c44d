// Which module is at work: in forward, and in Backward while what it recorded is processed.
#include "dtensor/tensor/work_scope.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/nn/containers.h"
#include "dtensor/nn/layers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/saved_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr int64_t kDim = 8, kRows = 4;
constexpr int64_t kActivation = kRows * kDim * sizeof(float);

// Notes the names of scopes in order, and the bytes that were received in each.
class Notes : public ScopeObserver {
 public:
  Notes(Context& context, Module& model) : context_(context) {
    model.VisitModules([&](const std::string& path, Module& module) { names_[&module] = path; });
    names_[nullptr] = "-";
    context.set_scope_observer(this);
  }
  ~Notes() override { context_.set_scope_observer(nullptr); }
  void Enter(const void* scope) override {
    Count();
    scope_ = scope;
    order_.push_back(names_.at(scope));
  }
  std::vector<std::string> TakeOrder() { return std::exchange(order_, {}); }
  std::map<std::string, int64_t> TakeBytes() {
    Count();
    return std::exchange(bytes_, {});
  }
  const std::string& name(const void* scope) const { return names_.at(scope); }

 private:
  void Count() {
    for (const auto& [key, traffic] : context_.communicator().traffic()) {
      bytes_[names_.at(scope_)] += traffic.bytes;
    }
    context_.communicator().ResetTraffic();
  }
  Context& context_;
  std::map<const void*, std::string> names_;
  const void* scope_ = nullptr;
  std::vector<std::string> order_;
  std::map<std::string, int64_t> bytes_;
};

// Two layers, "0" and "1".
std::unique_ptr<Sequential> TwoLayers() {
  auto model = std::make_unique<Sequential>();
  for (int i = 0; i < 2; ++i) model->Append(std::make_unique<LinearLayer>(kDim, kDim, 0.1));
  return model;
}

TensorOr LossOf(Context& context, const DeviceMesh& mesh, Module& model) {
  return Sum(model(Full(context, mesh, {Replicate()}, {kRows, kDim}, DType::kF32, 1)), {0, 1});
}

// On two ranks that count for themselves.
void OnRanks(const std::function<absl::Status(Context&, const DeviceMesh&, Sequential&)>& test) {
  EXPECT_THAT(RunRanks(2,
                       [&](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
                         const auto model = TwoLayers();
                         return test(context, mesh, *model);
                       }),
              IsOk());
}

TEST(WorkScope, ModulesAreEnteredAndLeftInForwardAndBackward) {
  OnRanks([](Context& context, const DeviceMesh& mesh, Sequential& model) -> absl::Status {
    DT_RETURN_IF_ERROR(model.Materialize(context, mesh, 1));
    Notes notes(context, model);
    const TensorOr loss = LossOf(context, mesh, model);
    EXPECT_THAT(notes.TakeOrder(), ElementsAre("", "0", "", "1", "", "-"));
    DT_RETURN_IF_ERROR(Backward(loss));
    // The sum has no module.
    EXPECT_THAT(notes.TakeOrder(), ElementsAre("1", "-", "0", "-"));
    EXPECT_EQ(context.scope(), nullptr);
    return absl::OkStatus();
  });
}

TEST(WorkScope, WithoutAnObserverThereIsNone) {
  OnRanks([](Context& context, const DeviceMesh& mesh, Sequential& model) -> absl::Status {
    DT_RETURN_IF_ERROR(model.Materialize(context, mesh, 1));
    const TensorOr loss = LossOf(context, mesh, model);
    Notes notes(context, model);
    DT_RETURN_IF_ERROR(Backward(loss));
    EXPECT_THAT(notes.TakeOrder(), IsEmpty());  // nothing was noted when it was recorded
    return absl::OkStatus();
  });
}

TEST(WorkScope, AnErrorLeavesTheScope) {
  OnRanks([](Context& context, const DeviceMesh& mesh, Sequential& model) -> absl::Status {
    DT_RETURN_IF_ERROR(model.Materialize(context, mesh, 1));
    Notes notes(context, model);
    const TensorOr y = model(Full(context, mesh, {Replicate()}, {kRows, 3}, DType::kF32, 1));
    EXPECT_FALSE(y.ok());
    EXPECT_THAT(notes.TakeOrder(), ElementsAre("", "0", "", "-"));
    EXPECT_EQ(context.scope(), nullptr);
    return absl::OkStatus();
  });
}

// The module that runs again enters itself, and what is walked then is its own.
TEST(WorkScope, RecomputedModulesAreEnteredAgain) {
  OnRanks([](Context& context, const DeviceMesh& mesh, Sequential& model) -> absl::Status {
    DT_RETURN_IF_ERROR(model.Materialize(context, mesh, 1));
    model[0].set_recomputes(true);
    Notes notes(context, model);
    const TensorOr loss = LossOf(context, mesh, model);
    notes.TakeOrder();
    DT_RETURN_IF_ERROR(Backward(loss));
    // The call of "0" was recorded by the model.
    EXPECT_THAT(notes.TakeOrder(), ElementsAre("1", "-", "", "0", "", "-", "0", "-"));
    return absl::OkStatus();
  });
}

// Row-parallel and column-parallel: what moves does so in the module whose edge it is.
TEST(WorkScope, TrafficIsThatOfTheModuleWhoseOperatorsWantIt) {
  OnRanks([](Context& context, const DeviceMesh& mesh, Sequential& model) -> absl::Status {
    int layer = 0;
    for (const int split : {0, 1}) {
      Parameter& weight = *model[layer++].own_parameters()[0].parameter;
      DT_ASSIGN_OR_RETURN(const Layout layout,
                          Layout::FromPlacements(mesh, {Shard(split)}, weight.shape));
      DT_RETURN_IF_ERROR(weight.Materialize(context, layout, "", 1));
    }
    model[1].edges() = {{mesh, {0}, std::nullopt, Replicate()}};
    Notes notes(context, model);
    const DistributedTensor x = *Full(context, mesh, {Replicate()}, {kRows, kDim}, DType::kF32, 1);
    DistributedTensor leaf = x.Detach();
    DT_RETURN_IF_ERROR(leaf.set_requires_grad(true));
    const TensorOr loss = Sum(model(leaf), {0, 1});
    EXPECT_THAT(notes.TakeBytes(), ElementsAre(Pair("1", kActivation)));
    DT_RETURN_IF_ERROR(Backward(loss));
    EXPECT_THAT(notes.TakeBytes(), IsEmpty());  // the leaf's gradient is left Partial
    return absl::OkStatus();
  });
}

// Gathers belong to the module whose group it is, though they are begun one ahead.
TEST(WorkScope, GathersAreTheirGroupsOwn) {
  OnRanks([](Context& context, const DeviceMesh& mesh, Sequential& model) -> absl::Status {
    const auto all = GatherGroups::New();
    model.set_gather_group(all->Add(ShardLevel::kParameters));
    for (int i = 0; i < 2; ++i) {
      Parameter& weight = *model[i].own_parameters()[0].parameter;
      DT_ASSIGN_OR_RETURN(const Layout layout,
                          Layout::FromPlacements(mesh, {Shard(0)}, weight.shape));
      DT_RETURN_IF_ERROR(weight.Materialize(context, layout, "", 1));
      const auto group = all->Add(ShardLevel::kParameters);
      DT_RETURN_IF_ERROR(group->Add(weight.tensor, Layout::Replicated(mesh, 2)));
      model[i].set_gather_group(group);
    }
    constexpr int64_t kHalf = kDim * kDim * sizeof(float) / 2;
    Notes notes(context, model);
    const TensorOr loss = LossOf(context, mesh, model);
    EXPECT_THAT(notes.TakeBytes(), UnorderedElementsAre(Pair("0", kHalf), Pair("1", kHalf)));
    DT_RETURN_IF_ERROR(Backward(loss));
    // Again; gradients are whole, and are cut.
    EXPECT_THAT(notes.TakeBytes(), UnorderedElementsAre(Pair("0", kHalf), Pair("1", kHalf)));
    return absl::OkStatus();
  });
}

TEST(SavedMemory, IsThatOfTheOldestOperatorThatSavedIt) {
  OnRanks([](Context& context, const DeviceMesh& mesh, Sequential& model) -> absl::Status {
    DT_RETURN_IF_ERROR(model.Materialize(context, mesh, 1));
    Notes notes(context, model);
    const auto live = [&] { return context.device().memory().live_bytes; };
    DistributedTensor x = *Full(context, mesh, {Replicate()}, {kRows, kDim}, DType::kF32, 1);
    const int64_t before = live();
    const TensorOr loss = Sum(Mul(model(x), model(x)), {0, 1});
    x = DistributedTensor();
    std::map<std::string, int64_t> saved;
    FreeSaved(*loss, [&](const void* scope, int64_t bytes) { saved[notes.name(scope)] += bytes; });
    // x, which layer 0 saved for its weight; layer 1's operands; and those of the product.
    EXPECT_THAT(saved, ElementsAre(Pair("-", 2 * kActivation), Pair("0", kActivation),
                                   Pair("1", 2 * kActivation)));
    EXPECT_EQ(live(), before - kActivation + 4);  // the loss is left
    EXPECT_FALSE(Backward(loss).ok());
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace dtensor
