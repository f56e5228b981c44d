// States of optimizers: read, set, and carried to another mesh.
#include <memory>
#include <vector>

#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/optim/sgd.h"
#include "dtensor/nn/testing/small_problem.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;

using Values = std::vector<double>;
using Saved = std::map<std::string, Values>;

constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kBF16};

absl::StatusOr<std::unique_ptr<Optimizer>> Make(bool adam, const DistributedTensor& p) {
  if (adam) {
    DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create({p}, {.master_weights = true}));
    return std::make_unique<AdamW>(std::move(adamw));
  }
  DT_ASSIGN_OR_RETURN(
      Sgd sgd, Sgd::Create({p}, {.momentum = 0.9, .dampening = 0.5, .master_weights = true}));
  return std::make_unique<Sgd>(std::move(sgd));
}

absl::Status Train(Optimizer& optimizer, int first, int last) {
  const DistributedTensor& p = optimizer.parameters()[0];
  for (int step = first; step <= last; ++step) {
    DT_RETURN_IF_ERROR(AddSmallGradient(p, SomeValues(12, step)));
    DT_RETURN_IF_ERROR(optimizer.Step(0.05));
    optimizer.ClearGradients();
  }
  return absl::OkStatus();
}

// Of a parameter and its state, as a checkpoint has it.
absl::StatusOr<Saved> Save(const Optimizer& optimizer) {
  const DistributedTensor& p = optimizer.parameters()[0];
  DT_ASSIGN_OR_RETURN(const OptimizerState state, optimizer.State(p));
  Saved saved;
  DT_ASSIGN_OR_RETURN(saved["parameter"], SmallValues(p));
  for (const auto& [name, tensor] : state) {
    DT_ASSIGN_OR_RETURN(saved[name], SmallValues(tensor));
  }
  return saved;
}

// Tensors of these values that lie in another way than the parameter.
absl::StatusOr<OptimizerState> Elsewhere(const DistributedTensor& p, const Saved& saved) {
  Context& context = p.context();
  Placements rows(p.mesh().num_axes(), Replicate());
  rows.back() = Shard(0);
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::FromPlacements(p.mesh(), rows, {4, 3}));
  OptimizerState state;
  for (const auto& [name, values] : saved) {
    if (name == "parameter") continue;
    const bool is_step = name == "step";
    DT_ASSIGN_OR_RETURN(state[name],
                        SmallTensor(context, is_step ? Layout::Replicated(p.mesh(), 0) : layout,
                                    is_step ? Dims{} : Dims{4, 3},
                                    is_step ? DType::kI64 : AccumulatorOf(p.dtype()), values));
  }
  return state;
}

// They have no elements, and count no steps.
TEST(OptimizerState, IsSetOnRanksThatAreNotOnTheMesh) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2@0,1"));
    DT_ASSIGN_OR_RETURN(DistributedTensor p,
                        Full(context, mesh, {Shard(0)}, {4, 3}, DType::kF32, 1));
    DT_RETURN_IF_ERROR(p.set_requires_grad(true));
    for (const bool adam : {true, false}) {
      DT_ASSIGN_OR_RETURN(const auto optimizer, Make(adam, p));
      DT_ASSIGN_OR_RETURN(const OptimizerState state, optimizer->State(p));
      DT_RETURN_IF_ERROR(optimizer->SetState(p, state));
    }
    return absl::OkStatus();
  }));
}

// A rank of the new mesh need not be on the old one, nor the reverse.
TEST(OptimizerState, CountsItsStepsOnAnotherMesh) {
  for (const char* const other : {"tp=2@1,2", "tp=2@2,3", "tp=2@0..1"}) {
    SCOPED_TRACE(other);
    DT_EXPECT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
      const auto parameter = [&](const char* text) -> TensorOr {
        DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(text));
        DT_ASSIGN_OR_RETURN(DistributedTensor p,
                            Full(context, mesh, {Shard(0)}, {4, 3}, DType::kF32, 1));
        DT_RETURN_IF_ERROR(p.set_requires_grad(true));
        return p;
      };
      DT_ASSIGN_OR_RETURN(const DistributedTensor from, parameter("tp=2@0..1"));
      DT_ASSIGN_OR_RETURN(const DistributedTensor to, parameter(other));
      for (const bool adam : {true, false}) {
        DT_ASSIGN_OR_RETURN(const auto before, Make(adam, from));
        DT_ASSIGN_OR_RETURN(const auto after, Make(adam, to));
        if (from.spec().on_mesh) DT_RETURN_IF_ERROR(Train(*before, 1, 3));
        DT_ASSIGN_OR_RETURN(OptimizerState state, before->State(from));
        DT_RETURN_IF_ERROR(after->SetState(to, state));
        DT_ASSIGN_OR_RETURN(const OptimizerState set, after->State(to));
        if (to.spec().on_mesh) {
          EXPECT_THAT(ToGlobal<int64_t>(set.at("step")), IsOkAndHolds(std::vector<int64_t>{3}));
        }
        // What is wrong with it is said by all that see it, before anything moves.
        DT_ASSIGN_OR_RETURN(state["step"],
                            Full(context, Layout::Replicated(from.mesh(), 0), {}, DType::kI64, -1));
        const absl::Status refused = after->SetState(to, state);
        if (from.spec().on_mesh || to.spec().on_mesh) {
          EXPECT_THAT(refused,
                      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("it counts from 0")));
        }
      }
      return absl::OkStatus();
    }));
  }
}

TEST(OptimizerState, HasTheParametersLayout) {
  for (const SmallPlace& place : SmallPlaces()) {
    for (const DType dtype : kTypes) {
      EXPECT_THAT(
          RunAt(place,
                [&](Context& context) -> absl::Status {
                  DT_ASSIGN_OR_RETURN(
                      const DistributedTensor p,
                      SmallParameter(context, place, {4, 3}, dtype, SomeValues(12, 1)));
                  DT_ASSIGN_OR_RETURN(const auto adamw, Make(true, p));
                  DT_ASSIGN_OR_RETURN(OptimizerState state, adamw->State(p));
                  for (const auto& [name, tensor] : state) {
                    if (name == "step") continue;
                    EXPECT_EQ(tensor.layout(), p.layout());
                    EXPECT_EQ(tensor.dtype(), AccumulatorOf(dtype));
                  }
                  EXPECT_THAT(SmallValues(state.at("exp_avg")), IsOkAndHolds(Values(12, 0)));
                  EXPECT_EQ(state.erase("master"), dtype == DType::kBF16 ? 1 : 0);
                  EXPECT_THAT(state, ElementsAre(Key("exp_avg"), Key("exp_avg_sq"), Key("step")));
                  return absl::OkStatus();
                }),
          IsOk());
    }
  }
}

// Three steps, a checkpoint, two more; and the two again after it was loaded on another mesh.
void ExpectResumes(bool adam, DType dtype) {
  Saved middle, end;
  EXPECT_THAT(RunRanks(1,
                       [&](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const DistributedTensor p,
                                             SmallParameter(context, {"tp=1", {Replicate()}},
                                                            {4, 3}, dtype, SomeValues(12, 9)));
                         DT_ASSIGN_OR_RETURN(const auto optimizer, Make(adam, p));
                         DT_RETURN_IF_ERROR(Train(*optimizer, 1, 3));
                         DT_ASSIGN_OR_RETURN(middle, Save(*optimizer));
                         DT_RETURN_IF_ERROR(Train(*optimizer, 4, 5));
                         DT_ASSIGN_OR_RETURN(end, Save(*optimizer));
                         return absl::OkStatus();
                       }),
              IsOk());
  for (const SmallPlace& place : SmallPlaces()) {
    SCOPED_TRACE(place.ToString());
    EXPECT_THAT(RunAt(place,
                      [&](Context& context) -> absl::Status {
                        DT_ASSIGN_OR_RETURN(
                            const DistributedTensor p,
                            SmallParameter(context, place, {4, 3}, dtype, middle.at("parameter")));
                        DT_ASSIGN_OR_RETURN(const auto optimizer, Make(adam, p));
                        DT_ASSIGN_OR_RETURN(const OptimizerState state, Elsewhere(p, middle));
                        DT_RETURN_IF_ERROR(optimizer->SetState(p, state));
                        EXPECT_THAT(Save(*optimizer), IsOkAndHolds(middle));
                        // What was handed in stays the caller's.
                        for (const auto& [name, tensor] : state) {
                          DT_RETURN_IF_ERROR(BeforeWrite(tensor));
                          DT_RETURN_IF_ERROR(kernels::Fill(context.device(), tensor.local(), 99));
                        }
                        DT_RETURN_IF_ERROR(Train(*optimizer, 4, 5));
                        EXPECT_THAT(Save(*optimizer), IsOkAndHolds(end));
                        return absl::OkStatus();
                      }),
                IsOk());
  }
}

TEST(OptimizerState, TrainingResumesOnEveryMesh) {
  for (const bool adam : {true, false}) {
    for (const DType dtype : kTypes) ExpectResumes(adam, dtype);
  }
}

TEST(OptimizerState, IsThatOfTheLastStepWhereverItIsRead) {
  const SmallPlace place{"tp=2", {Shard(0)}};
  EXPECT_THAT(RunAt(place,
                    [&](Context& context) -> absl::Status {
                      DT_ASSIGN_OR_RETURN(
                          const DistributedTensor p,
                          SmallParameter(context, place, {4, 3}, DType::kF64, SomeValues(12, 1)));
                      DT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Create({p}, {.momentum = 0.5}));
                      DT_ASSIGN_OR_RETURN(const OptimizerState state, sgd.State(p));
                      const DistributedTensor& buffer = state.at("momentum_buffer");
                      for (const double want : {1.0, 1.5}) {
                        DT_RETURN_IF_ERROR(AddSmallGradient(p, Values(12, 1)));
                        DT_RETURN_IF_ERROR(sgd.Step(0.1));
                        sgd.ClearGradients();
                        // Remembered by the tensor, and forgotten with the next step.
                        DT_ASSIGN_OR_RETURN(const DistributedTensor whole,
                                            buffer.Redistribute({Replicate()}));
                        EXPECT_THAT(SmallValues(whole), IsOkAndHolds(Values(12, want)));
                      }
                      return absl::OkStatus();
                    }),
              IsOk());
}

TEST(OptimizerState, RefusesWhatDoesNotFitAndKeepsItsOwn) {
  const SmallPlace place{"tp=2", {Shard(0)}};
  EXPECT_THAT(
      RunAt(place,
            [&](Context& context) -> absl::Status {
              DT_ASSIGN_OR_RETURN(const DistributedTensor p,
                                  SmallParameter(context, place, {4, 3}, DType::kF32, Values(12)));
              DT_ASSIGN_OR_RETURN(const DistributedTensor other,
                                  SmallParameter(context, place, {4, 3}, DType::kF32, Values(12)));
              DT_ASSIGN_OR_RETURN(const auto adamw, Make(true, p));
              DT_RETURN_IF_ERROR(Train(*adamw, 1, 2));
              DT_ASSIGN_OR_RETURN(const Saved before, Save(*adamw));
              const auto refuses = [&](const char* name, const TensorOr& value, const char* why) {
                OptimizerState state = *Elsewhere(
                    p, {{"exp_avg", Values(12, 1)}, {"exp_avg_sq", Values(12, 1)}, {"step", {7}}});
                state[name] = *value;
                if (!value->defined()) state.erase(name);
                EXPECT_THAT(adamw->SetState(p, state),
                            StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
                EXPECT_THAT(Save(*adamw), IsOkAndHolds(before)) << why;
              };
              const Layout matrix = p.layout(), scalar = Layout::Replicated(p.mesh(), 0);
              const auto full = [&](const Layout& layout, const Dims& shape, DType dtype,
                                    double value) {
                return Full(context, layout, shape, dtype, value);
              };
              refuses("exp_avg", DistributedTensor(),
                      "AdamW::SetState: there is no \"exp_avg\"; give what State() has");
              refuses("step", DistributedTensor(), "there is no \"step\"");
              refuses("momentum", full(matrix, {4, 3}, DType::kF32, 1), "has no \"momentum\"");
              refuses("exp_avg", full(matrix, {3, 4}, DType::kF32, 1), "Cast or Reshape it");
              refuses("exp_avg_sq", full(matrix, {4, 3}, DType::kBF16, 1), "\"exp_avg_sq\" is [4,");
              refuses("step", full(scalar, {}, DType::kF32, 1),
                      "an i64 scalar of the parameter's Context is wanted");
              refuses("step", full(scalar, {}, DType::kI64, -1), "it counts from 0");
              refuses("step", full(scalar, {}, DType::kI64, 0x1p62 + 0x1p61), "up to 2^62");
              EXPECT_THAT(adamw->State(other), StatusIs(absl::StatusCode::kInvalidArgument,
                                                        HasSubstr("AdamW::State: [4, 3] f32")));
              EXPECT_THAT(adamw->SetState(DistributedTensor(), {}),
                          StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("is no parameter of this optimizer")));
              return absl::OkStatus();
            }),
      IsOk());
}

}  // namespace
}  // namespace dtensor
