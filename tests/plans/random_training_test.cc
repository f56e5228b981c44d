// Random training programs: several graphs at a time, walked in any order and more than once,
// evaluation in between, steps that some graphs do not survive, gradients of chosen parameters,
// layers whose recomputation is switched on or off. On every mesh and under every plan, each gives
// what it gives on one rank: the same values, and the same refusals.
#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/testing/shared_models.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tests/tracing/check_trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int64_t kDim = 6;

// What one action gave: numbers, or a refusal.
struct Note {
  std::string what;
  std::vector<double> values;
};

class Program {
 public:
  Program(Context& context, DeviceMesh mesh, uint32_t seed, bool recomputes)
      : context_(context), mesh_(std::move(mesh)), random_(seed), recomputes_(recomputes) {
    model_.Append(std::make_unique<LinearLayer>(kDim, kDim, 0.4, LinearLayer::Units(),
                                                LinearLayer::Bias::kAdded));
    model_.Append(std::make_unique<TwoTowers>(kDim));
    model_.Append(std::make_unique<RmsNormLayer>(kDim));
    model_.Append(std::make_unique<LinearLayer>(kDim, kDim, 0.4));
    model_.SetDType(DType::kF64);
  }

  absl::StatusOr<std::vector<Note>> Run(const ParallelPlan& plan) {
    DT_RETURN_IF_ERROR(plan.Apply(model_, context_, mesh_, {.seed = 7, .allow_uneven = true}));
    parameters_ = model_.Parameters();
    DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(parameters_, {}));
    for (int i = 0; i < 14; ++i) DT_RETURN_IF_ERROR(Act(adamw));
    for (size_t i = 0; i < parameters_.size(); ++i) {
      DT_RETURN_IF_ERROR(Read(absl::StrCat("parameter ", i), parameters_[i]));
    }
    return std::move(notes_);
  }

 private:
  int Below(size_t n) { return static_cast<int>(random_() % n); }

  absl::Status Act(AdamW& adamw) {
    switch (Below(9)) {
      case 0:
      case 1:
        return Forward();
      case 2:
      case 3:
        return losses_.empty() ? Forward() : Walk();
      case 4:
        return losses_.empty() ? Forward() : AskForOne();
      case 5: {
        const NoGrad no_grad(context_);
        DT_ASSIGN_OR_RETURN(const DistributedTensor loss, Loss());
        return Read("evaluated", loss);
      }
      case 6: {
        const int part = Below(model_.size());
        model_[part].set_recomputes(recomputes_ && !model_[part].recomputes());
        return absl::OkStatus();
      }
      case 7:
        return Reduce();
      default:
        DT_RETURN_IF_ERROR(Reduce());
        DT_RETURN_IF_ERROR(adamw.Step(0.01));
        adamw.ClearGradients();
        return absl::OkStatus();
    }
  }

  TensorOr Loss() {
    const TensorOr x = RandomNormal(context_, Layout::Replicated(mesh_, 3), {4, 6, kDim},
                                    {.seed = 1 + random_() % 3, .dtype = DType::kF64});
    const TensorOr y = model_(x);
    return Sum(Mul(y, y), {0, 1, 2});
  }

  absl::Status Forward() {
    DT_ASSIGN_OR_RETURN(DistributedTensor loss, Loss());
    losses_.push_back(loss);
    return Read("loss", loss.Detach());
  }

  absl::Status Walk() {
    const int which = Below(losses_.size());
    const bool retain = Below(3) == 0;
    const absl::Status status = Backward(losses_[which], {.retain_graph = retain});
    if (!retain || !status.ok()) losses_.erase(losses_.begin() + which);
    return Expected("Backward", status);
  }

  absl::Status AskForOne() {
    const DistributedTensor& parameter = parameters_[Below(parameters_.size())];
    const int which = Below(losses_.size());
    const auto gradients = GradientsOf(losses_[which], {parameter}, {.retain_graph = true});
    if (!gradients.ok()) return Expected("GradientsOf", gradients.status());
    return Read("gradient", (*gradients)[0]);
  }

  absl::Status Reduce() {
    DT_RETURN_IF_ERROR(ReduceGradients(parameters_));
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const DistributedTensor gradient = parameters_[i].grad();
      const std::string what = absl::StrCat("gradient ", i);
      if (!gradient.defined()) {
        notes_.push_back({what + " none", {}});
        continue;
      }
      EXPECT_EQ(gradient.layout(), parameters_[i].layout());
      DT_RETURN_IF_ERROR(Read(what, gradient));
    }
    return absl::OkStatus();
  }

  // A graph that a step has made stale.
  absl::Status Expected(const std::string& what, const absl::Status& status) {
    if (!status.ok() && !absl::IsFailedPrecondition(status)) return status;
    notes_.push_back({absl::StrCat(what, " ", absl::StatusCodeToString(status.code())), {}});
    return absl::OkStatus();
  }

  absl::Status Read(const std::string& what, const DistributedTensor& tensor) {
    DT_ASSIGN_OR_RETURN(std::vector<double> values, ToGlobal<double>(tensor));
    notes_.push_back({what, std::move(values)});
    return absl::OkStatus();
  }

  Context& context_;
  const DeviceMesh mesh_;
  std::mt19937 random_;
  const bool recomputes_;
  Sequential model_;
  std::vector<DistributedTensor> parameters_, losses_;
  std::vector<Note> notes_;
};

absl::Status Compare(const std::vector<Note>& got, const std::vector<Note>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (i >= got.size() || got[i].what != want[i].what ||
        got[i].values.size() != want[i].values.size()) {
      return absl::InternalError(absl::StrCat("note ", i, " is not: ", want[i].what));
    }
    double largest = 1e-3;
    for (const double value : want[i].values) largest = std::max(largest, std::abs(value));
    for (size_t k = 0; k < want[i].values.size(); ++k) {
      if (std::abs(got[i].values[k] - want[i].values[k]) <= 1e-9 * largest) continue;
      return absl::InternalError(absl::StrCat("note ", i, ", ", want[i].what, "[", k, "] is ",
                                              got[i].values[k], ", not ", want[i].values[k]));
    }
  }
  return absl::OkStatus();
}

struct Place {
  const char *mesh, *plan;
};
constexpr Place kPlaces[] = {
    {"fs=2", "{\"{0,1,1.a,3,}\", FullyShard(\"fs\")}"},
    {"fs=3", "{\"{0,1.a.proj,2,}\", FullyShard(\"fs\")}"},
    {"fs=2", "{\"{0,1,3}\", FullyShard(\"fs\", 2)}\n{\"\", FullyShard(\"fs\", 2)}"},
    {"fs=2", "{\"{0,1}\", FullyShard(\"fs\", 1)}\n{\"3\", FullyShard(\"fs\")}"},
    {"tp=2",
     "{\"0\", Colwise(\"tp\")}\n{\"1.b.proj\", Rowwise(\"tp\", out S(1))}\n"
     "{\"2\", SequenceParallel(\"tp\")}\n{\"3\", Colwise(\"tp\")}"},
    {"tp=3", "{\"0\", Rowwise(\"tp\")}\n{\"1.a.proj\", Colwise(\"tp\", out S(1))}"},
    {"fs=2,tp=2",
     "{\"{0,3}\", Colwise(\"tp\")}\n{\"2\", SequenceParallel(\"tp\")}\n"
     "{\"{0,1,2,3,}\", FullyShard(\"fs\")}"},
    {"dp=2,fs=2", "{\"\", DataParallel(\"dp\")}\n{\"{1,1.a,1.b,}\", FullyShard(\"fs\")}"},
};

void Try(uint32_t seed) {
  std::vector<Note> want;
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(want, Program(context, DeviceMesh(), seed, false).Run(ParallelPlan()));
    return absl::OkStatus();
  }));
  for (const Place& place : kPlaces) {
    const DeviceMesh mesh = *DeviceMesh::Parse(place.mesh);
    DT_EXPECT_OK(RunRanks(
        mesh.size(),
        [&](Context& context) -> absl::Status {
          DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse(place.plan));
          context.StartTrace();
          DT_ASSIGN_OR_RETURN(const auto got, Program(context, mesh, seed, true).Run(plan));
          DT_RETURN_IF_ERROR(CheckTrace(context));
          return Compare(got, want);
        }))
        << "program " << seed << " on " << place.mesh << "\n"
        << place.plan;
  }
}

TEST(RandomTraining, IsTheSameOnEveryMesh) {
  for (uint32_t seed = 1; seed <= 15 && !HasFailure(); ++seed) Try(seed);
}

}  // namespace
}  // namespace dtensor
