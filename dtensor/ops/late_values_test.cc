// Values that are computed later (docs/overlap.md), in uses unlike those of a model's block: read
// on one rank, empty on another, left behind by a world that has failed.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/testing/suite_device.h"
#include "dtensor/tensor/work_scope.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Body = std::function<absl::Status(Context&, const DeviceMesh&)>;

// On ranks that overlap all there is. `device` is where what was never written shows, if need be.
absl::Status OnMesh(absl::string_view text, const Body& body, int chunks = 2,
                    Device::Kind device = Device::Kind::kCpu) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(text));
  ContextOptions contexts;
  contexts.overlap = {.chunks = chunks, .min_bytes = 0};
  contexts.read_environment = false;
  RunOptions options;
  options.device = SuiteDevice(device);
  return RunRanks(
      mesh.size(), [&](Context& context) { return body(context, mesh); }, options, contexts);
}

TensorOr Ones(Context& context, const DeviceMesh& mesh, const Placements& placements, Dims shape) {
  return Full(context, mesh, placements, shape, DType::kF32, 1);
}

absl::Status Overwrite(const DistributedTensor& x) {
  DT_RETURN_IF_ERROR(BeforeWrite(x));
  return x.context().device().FillBytes(x.local().raw(), 0, x.local().bytes());
}

int64_t CallsOf(Context& context) {
  int64_t calls = 0;
  for (const auto& [key, traffic] : context.communicator().traffic()) calls += traffic.calls;
  return calls;
}

// --- Shards of nothing: the sum over ranks has a term on each.

TEST(LateValues, ARankWithNothingToSumHasATermOfZeros) {
  for (const int chunks : {0, 2}) {
    DT_EXPECT_OK(OnMesh(
        "tp=2,dp=2",
        [](Context& context, const DeviceMesh& mesh) -> absl::Status {
          DT_ASSIGN_OR_RETURN(const auto x, Ones(context, mesh, {Shard(0), Shard(1)}, {6, 1}));
          DT_ASSIGN_OR_RETURN(const auto w, Ones(context, mesh, {Shard(0), Shard(1)}, {4, 1}));
          DT_ASSIGN_OR_RETURN(const auto gathered,
                              x.Redistribute({Replicate(), Shard(1)}, {.on_use = true}));
          DT_ASSIGN_OR_RETURN(const auto y, Linear(gathered, w));
          DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(y));
          EXPECT_THAT(got, Each(1));
          return absl::OkStatus();
        },
        chunks, Device::Kind::kDeferred))
        << chunks;
  }
}

TEST(LateValues, ARankWithNothingToSumHasAGradientOfZeros) {
  for (const int chunks : {0, 2}) {
    DT_EXPECT_OK(OnMesh(
        "tp=2,dp=2",
        [](Context& context, const DeviceMesh& mesh) -> absl::Status {
          DT_ASSIGN_OR_RETURN(auto leaf, Ones(context, mesh, {Replicate(), Replicate()}, {6, 4}));
          DT_RETURN_IF_ERROR(leaf.set_requires_grad(true));
          DT_ASSIGN_OR_RETURN(const auto x, Scale(leaf, 1));
          DT_ASSIGN_OR_RETURN(auto w, Ones(context, mesh, {Replicate(), Shard(0)}, {1, 4}));
          DT_RETURN_IF_ERROR(w.set_requires_grad(true));
          DT_ASSIGN_OR_RETURN(const auto y, Linear(x, w));
          DT_ASSIGN_OR_RETURN(const auto z, y.Redistribute({Shard(0), Shard(1)}));
          DT_RETURN_IF_ERROR(Backward(Sum(Mul(z, z), {0, 1})));
          DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(leaf.grad()));
          EXPECT_THAT(got, Each(8));
          return absl::OkStatus();
        },
        chunks, Device::Kind::kDeferred))
        << chunks;
  }
}

// --- What one rank knows: its term of a sum, what strides made of a view.

// x [6, 4|] and w [4, 4|], of ones: each element of their product is 4.
absl::Status ScatterProduct(Context& context, const DeviceMesh& mesh,
                            const std::function<void(const DistributedTensor&)>& look) {
  DT_ASSIGN_OR_RETURN(const auto x, Ones(context, mesh, {Shard(1)}, {6, 4}));
  DT_ASSIGN_OR_RETURN(const auto w, Ones(context, mesh, {Shard(1)}, {4, 4}));
  DT_ASSIGN_OR_RETURN(const auto y, Linear(x, w));
  if (context.rank() == 0) look(y);
  DT_ASSIGN_OR_RETURN(const auto scattered, y.Redistribute({Shard(0)}));
  DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(scattered));
  EXPECT_THAT(got, Each(4));
  return absl::OkStatus();
}

TEST(LateValues, OneRankMayLookAtItsTerm) {
  const std::function<void(const DistributedTensor&)> looks[] = {
      [](const DistributedTensor& y) {
        const auto term = ToHost<float>(y.local());
        EXPECT_THAT(term.value_or(std::vector<float>{0}), Each(2));
      },
      [](const DistributedTensor& y) { y.Detach(); },
      [](const DistributedTensor& y) { y.Detach().local(); },
  };
  for (const auto& look : looks) {
    DT_EXPECT_OK(OnMesh("tp=2", [&](Context& context, const DeviceMesh& mesh) {
      return ScatterProduct(context, mesh, look);
    }));
  }
}

// Shards of 2 rows and of 1: on one rank the transposed rows are reshaped in place, on the other
// they are copied, and so are not read when x is written to.
TEST(LateValues, AWriteThatOneRanksProductReadsChangesNothingOfWhatMoves) {
  DT_EXPECT_OK(OnMesh("tp=2", [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Ones(context, mesh, {Shard(1)}, {2, 3, 4}));
    DT_ASSIGN_OR_RETURN(const auto w, Ones(context, mesh, {Shard(1)}, {4, 3}));
    DT_ASSIGN_OR_RETURN(const auto rows, Reshape(Transpose(x, 1, 2), {8, 3}));
    DT_ASSIGN_OR_RETURN(const auto y, Linear(rows, w));
    DT_RETURN_IF_ERROR(Overwrite(x));
    DT_ASSIGN_OR_RETURN(const auto scattered, y.Redistribute({Shard(0)}));
    DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(scattered));
    EXPECT_THAT(got, Each(3));
    return absl::OkStatus();
  }));
}

// An alias has the values when they are made, whoever asks, and moves as the tensor does.
TEST(LateValues, AnAliasOfAProductIsThatProduct) {
  DT_EXPECT_OK(OnMesh("tp=2", [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Ones(context, mesh, {Shard(1)}, {6, 4}));
    DT_ASSIGN_OR_RETURN(const auto w, Ones(context, mesh, {Shard(1)}, {4, 4}));
    DT_ASSIGN_OR_RETURN(const auto y, Linear(x, w));
    const DistributedTensor alias = y.Detach();
    if (context.rank() == 1) y.local();
    DT_ASSIGN_OR_RETURN(const auto scattered, alias.Redistribute({Shard(0)}));
    DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(scattered));
    EXPECT_THAT(got, Each(4));
    DT_RETURN_IF_ERROR(Overwrite(alias));
    DT_ASSIGN_OR_RETURN(const auto zeros, ToGlobal<float>(y));
    EXPECT_THAT(zeros, Each(0));
    return absl::OkStatus();
  }));
}

// --- Failures.

TEST(LateValues, ReadingWhatNeverCameIsAnError) {
  DistributedTensor kept[2];
  const absl::Status status =
      OnMesh("tp=2", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const auto x, Ones(context, mesh, {Shard(0)}, {6, 4}));
        DT_ASSIGN_OR_RETURN(kept[context.rank()], x.Redistribute({Replicate()}, {.on_use = true}));
        if (context.rank() == 1) return absl::AbortedError("rank 1 has had enough");
        const absl::Status read = ToGlobal<float>(kept[0]).status();
        EXPECT_THAT(read.message(), HasSubstr("rank 1 has had enough"));
        const NoGrad no_grad(context);
        EXPECT_FALSE(Tanh(Reshape(kept[0], {6, 4})).ok());  // of an alias
        return read;
      });
  EXPECT_THAT(status.message(), HasSubstr("rank 1 has had enough"));
}

// Nobody used it: it is made when the program ends.
TEST(LateValues, WhatAWorldLeftBehindCanBeRead) {
  std::vector<DistributedTensor> kept(2), products(2);
  DT_EXPECT_OK(OnMesh("tp=2", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    const int rank = context.rank();
    DT_ASSIGN_OR_RETURN(const auto x, Ones(context, mesh, {Shard(0)}, {6, 4}));
    DT_ASSIGN_OR_RETURN(kept[rank], x.Redistribute({Replicate()}, {.on_use = true}));
    DT_ASSIGN_OR_RETURN(const auto y, Ones(context, mesh, {Shard(1)}, {6, 4}));
    DT_ASSIGN_OR_RETURN(const auto w, Ones(context, mesh, {Shard(1)}, {3, 4}));
    DT_ASSIGN_OR_RETURN(products[rank], Linear(y, w));
    return absl::OkStatus();
  }));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(ToHost<float>(kept[rank].local()), IsOkAndHolds(Each(1)));
    EXPECT_THAT(ToHost<float>(products[rank].local()), IsOkAndHolds(Each(2)));  // a term
  }
  EXPECT_THAT(ToGlobal<float>(kept[0]), IsOkAndHolds(Each(1)));
}

TEST(LateValues, WhatOneRankAloneKeepsIsAnError) {
  DistributedTensor kept;
  EXPECT_THAT(
      OnMesh("tp=2",
             [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
               DT_ASSIGN_OR_RETURN(const auto x, Ones(context, mesh, {Shard(0)}, {6, 4}));
               DT_ASSIGN_OR_RETURN(const auto y, x.Redistribute({Replicate()}, {.on_use = true}));
               if (context.rank() == 1) return absl::OkStatus();
               kept = y;
               return absl::OkStatus();
             }),
      StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1: returned while rank 0 waits")));
}

// --- Memory, and who is told of the work.

// Of x [64, 64|] and what was made of it: its memory is its own again.
TEST(LateValues, WhatWasMadeHoldsNothingOfWhatItWasMadeOf) {
  DT_EXPECT_OK(OnMesh("dp=2,tp=2", [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    const RedistributeOptions in_place{.plan = RedistributionOptions{.in_place = true}};
    DT_ASSIGN_OR_RETURN(const auto ones, Ones(context, mesh, {Replicate(), Shard(0)}, {64, 64}));
    DT_ASSIGN_OR_RETURN(const auto x, ones.Redistribute({Partial(), Shard(0)}));
    DT_ASSIGN_OR_RETURN(const auto gathered,
                        x.Redistribute({Partial(), Replicate()}, {.on_use = true}));
    DT_ASSIGN_OR_RETURN(const auto w, Ones(context, mesh, {Replicate(), Shard(0)}, {4, 64}));
    DT_ASSIGN_OR_RETURN(const auto y, Linear(gathered, w));
    const void* const before = x.local().raw();
    DT_ASSIGN_OR_RETURN(const auto reduced, x.Redistribute({Replicate(), Shard(0)}, in_place));
    EXPECT_EQ(reduced.local().raw(), before);
    return absl::OkStatus();
  }));
}

TEST(LateValues, AProductThatWasMadeDoesNotHoldItsOperands) {
  DT_EXPECT_OK(OnMesh("tp=2", [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    const auto live = [&] { return context.device().memory().live_bytes; };
    const int64_t nothing = live();
    DT_ASSIGN_OR_RETURN(auto x, Ones(context, mesh, {Shard(1)}, {64, 64}));
    DT_ASSIGN_OR_RETURN(auto w, Ones(context, mesh, {Shard(1)}, {64, 64}));
    DT_ASSIGN_OR_RETURN(const auto y, Linear(x, w));
    DT_RETURN_IF_ERROR(Overwrite(x));  // makes it, and nobody asks y
    x = w = DistributedTensor();
    EXPECT_LE(live() - nothing, 64 * 64 * sizeof(float));
    return absl::OkStatus();
  }));
}

// A dropped one is remembered by its source: it moves if that is written to, on all ranks.
TEST(LateValues, WhatNobodyUsesMovesBeforeItsSourceIsWrittenTo) {
  DT_EXPECT_OK(OnMesh("tp=2", [](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Ones(context, mesh, {Shard(0)}, {6, 4}));
    DT_RETURN_IF_ERROR(x.Redistribute({Replicate()}, {.on_use = true}).status());
    EXPECT_EQ(CallsOf(context), 0);
    DT_RETURN_IF_ERROR(Overwrite(x));
    EXPECT_EQ(CallsOf(context), 1);
    DT_ASSIGN_OR_RETURN(auto leaf, Ones(context, mesh, {Shard(0)}, {6, 4}));
    DT_RETURN_IF_ERROR(leaf.set_requires_grad(true));  // which remembers nothing
    DT_RETURN_IF_ERROR(leaf.Redistribute({Replicate()}, {.on_use = true}).status());
    DT_RETURN_IF_ERROR(Overwrite(leaf));
    EXPECT_EQ(CallsOf(context), 1);
    return absl::OkStatus();
  }));
}

// Adds up what is received in each scope.
class BytesByScope : public ScopeObserver {
 public:
  explicit BytesByScope(Context& context) : context_(context) { context_.set_scope_observer(this); }
  ~BytesByScope() override { context_.set_scope_observer(nullptr); }
  void Enter(const void* scope) override {
    const int64_t now = Bytes();
    if (scope_ != nullptr) bytes_[*static_cast<const int*>(scope_)] += now - before_;
    scope_ = scope;
    before_ = now;
  }
  int64_t of(int scope) const { return bytes_[scope]; }

 private:
  int64_t Bytes() const {
    int64_t bytes = 0;
    for (const auto& [key, traffic] : context_.communicator().traffic()) bytes += traffic.bytes;
    return bytes;
  }
  Context& context_;
  const void* scope_ = nullptr;
  int64_t before_ = 0;
  int64_t bytes_[3] = {};
};

TEST(LateValues, AGatherIsTheWorkOfTheScopeThatAskedForIt) {
  for (const int chunks : {0, 2}) {
    for (const bool beside : {false, true}) {
      DT_EXPECT_OK(OnMesh(
          "tp=2",
          [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
            const int scopes[] = {0, 1, 2};
            DT_ASSIGN_OR_RETURN(const auto x, Ones(context, mesh, {Shard(0)}, {6, 4}));
            DT_ASSIGN_OR_RETURN(const auto w, Ones(context, mesh, {Shard(0)}, {4, 4}));
            BytesByScope observer(context);
            DistributedTensor gathered;
            {
              const WorkScope edge(context, &scopes[0]);
              DT_ASSIGN_OR_RETURN(gathered, x.Redistribute({Replicate()}, {.on_use = true}));
            }
            {
              const WorkScope user(context, &scopes[1]);
              DT_RETURN_IF_ERROR(beside ? Linear(gathered, w).status() : Tanh(gathered).status());
            }
            EXPECT_EQ(observer.of(0), 3 * 4 * sizeof(float));
            EXPECT_EQ(observer.of(1), 0);
            return absl::OkStatus();
          },
          chunks))
          << chunks << beside;
    }
  }
}

// --- An operator from outside whose backward reads its result.

absl::Status MakeOnes(const OpCall& call) {
  return kernels::Fill(call.device(), call.results[0], 1);
}
absl::Status SpreadResult(const GradCall& call) {
  const Tensor& gradient = call.gradients[0];
  const Tensor spread = call.results[0].View(gradient.shape(), {1, 0}, 0);
  return kernels::Unary(call.device(), kernels::UnaryOp::kCopy, spread, gradient);
}

TEST(LateValues, AResultThatBackwardReadsIsMadeAtOnce) {
  OpDef op{.name = "Foreign", .rule = "m k -> m"};
  op.every_device = {MakeOnes, SpreadResult};
  op.saved_results = 1;
  op.rows.has = [](const Decision&, int dim) { return dim == 0; };
  op.rows.forward = [](const OpCall&, int, const RowRange&, bool) -> absl::Status {
    return absl::UnimplementedError("all at once");
  };
  op.rows.backward = [](const GradCall&, int, const RowRange&, bool) -> absl::Status {
    return absl::UnimplementedError("all at once");
  };
  DT_EXPECT_OK(OnMesh(
      "tp=2",
      [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
        DT_ASSIGN_OR_RETURN(auto leaf, Ones(context, mesh, {Shard(1)}, {6, 4}));
        DT_RETURN_IF_ERROR(leaf.set_requires_grad(true));
        const TensorOr x = leaf;
        DT_ASSIGN_OR_RETURN(const auto y, Dispatch(op, {&x}, {}));
        EXPECT_TRUE(y.layout().is_partial());
        DT_ASSIGN_OR_RETURN(const auto one, Ones(context, mesh, {Replicate()}, {6}));
        DT_RETURN_IF_ERROR(Backward(y, {.gradient = one}));
        DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(leaf.grad()));
        EXPECT_THAT(got, Each(1));
        return absl::OkStatus();
      },
      2, Device::Kind::kDeferred));
}

}  // namespace
}  // namespace dtensor
