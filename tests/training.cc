#include "dtensor/tests/training.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/optim/clip.h"
#include "dtensor/nn/optim/muon.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/testing/suite_ranks.h"

namespace dtensor {
namespace {

// One rank's part of a run.
class RankRun {
 public:
  RankRun(Context& context, const TrainingRun& run)
      : context_(context), run_(run), model_(run.model) {}

  absl::StatusOr<Trained> Run() {
    DT_RETURN_IF_ERROR(Prepare());
    DT_ASSIGN_OR_RETURN(trained_.first_values, ReadAll(/*gradients=*/false));
    DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(model_.Parameters(), {}));
    for (int step = 0; step < run_.steps; ++step) DT_RETURN_IF_ERROR(Step(step, adamw));
    DT_ASSIGN_OR_RETURN(trained_.parameters, ReadAll(/*gradients=*/false));
    return std::move(trained_);
  }

 private:
  absl::Status Prepare() {
    DT_ASSIGN_OR_RETURN(mesh_, DeviceMesh::Parse(run_.mesh));
    model_.SetDType(run_.first_values);
    const ParallelPlan plan = run_.plan ? *run_.plan : PlanFor(mesh_, run_.sequence_parallel);
    DT_RETURN_IF_ERROR(plan.Apply(model_, context_, mesh_,
                                  {.seed = run_.seed, .allow_uneven = run_.allow_uneven}));
    model_.VisitModules([&](const std::string& path, Module& module) {
      const bool layer = absl::EndsWith(path, ".0") || absl::EndsWith(path, ".1");
      module.set_recomputes(run_.recompute && layer);
    });
    absl::Status status;
    model_.VisitParameters([&](const std::string& path, Parameter& parameter) {
      status.Update(Widen(parameter));
      trained_.layouts[path] = parameter.tensor.layout().ToString();
    });
    DT_RETURN_IF_ERROR(status);
    DT_ASSIGN_OR_RETURN(ids_, Tokens(7));
    DT_ASSIGN_OR_RETURN(targets_, Tokens(5));
    return absl::OkStatus();
  }

  absl::Status Widen(Parameter& parameter) {
    if (run_.dtype == run_.first_values) return absl::OkStatus();
    const NoGrad no_grad(context_);
    DT_ASSIGN_OR_RETURN(parameter.tensor, Cast(parameter.tensor, run_.dtype));
    DT_RETURN_IF_ERROR(parameter.tensor.set_requires_grad(true));
    parameter.tensor.set_pinned(true);
    return absl::OkStatus();
  }

  TensorOr Tokens(int64_t factor) {
    return StepTokens(context_, mesh_, {run_.batch, run_.sequence}, factor, run_.model.vocab);
  }

  absl::Status Step(int step, AdamW& adamw) {
    context_.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const DistributedTensor logits, model_(ids_));
    trained_.layouts["logits"] = logits.layout().ToString();
    DT_ASSIGN_OR_RETURN(const DistributedTensor loss, Mean(CrossEntropy(logits, targets_), {0, 1}));
    DT_RETURN_IF_ERROR(Backward(loss));
    DT_RETURN_IF_ERROR(ReduceGradients(model_.Parameters()));
    DT_ASSIGN_OR_RETURN(const ClipResult clip, ClipByGlobalNorm(model_.Parameters(), 1.0));
    trained_.traffic = context_.communicator().traffic();  // reading is no part of a step
    if (step == 0) {
      DT_ASSIGN_OR_RETURN(trained_.first_gradients, ReadAll(/*gradients=*/true));
    }
    DT_RETURN_IF_ERROR(adamw.Step(0.05, clip.scale));
    adamw.ClearGradients();
    DT_ASSIGN_OR_RETURN(trained_.losses.emplace_back(), Item(loss.Detach()));
    DT_ASSIGN_OR_RETURN(trained_.norms.emplace_back(), Item(clip.norm));
    return absl::OkStatus();
  }

  absl::StatusOr<Trained::Values> ReadAll(bool gradients) {
    Trained::Values all;
    absl::Status status;
    model_.VisitParameters([&](const std::string& path, Parameter& parameter) {
      auto values = WideValues(gradients ? parameter.tensor.grad() : parameter.tensor);
      status.Update(values.status());
      if (values.ok()) all[path] = *std::move(values);
    });
    DT_RETURN_IF_ERROR(status);
    return all;
  }

  Context& context_;
  const TrainingRun& run_;
  DeviceMesh mesh_;
  Transformer model_;
  DistributedTensor ids_, targets_;
  Trained trained_;
};

}  // namespace

absl::StatusOr<std::vector<double>> WideValues(const DistributedTensor& tensor) {
  const NoGrad no_grad(tensor.context());
  DT_ASSIGN_OR_RETURN(const DistributedTensor wide, Cast(tensor, DType::kF64));
  return ToGlobal<double>(wide);
}

TensorOr StepTokens(Context& context, const DeviceMesh& mesh, const Dims& shape, int64_t factor,
                    int64_t below) {
  std::vector<int32_t> tokens(NumElements(shape));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(static_cast<int64_t>(i) * factor % below);
  }
  return Distribute<int32_t>(context, Layout::Replicated(mesh, 2), shape, tokens);
}

absl::StatusOr<std::unique_ptr<Optimizer>> AdamWOrMuon(
    const std::vector<DistributedTensor>& parameters, bool muon) {
  MuonGroup matrices;
  AdamWGroup others;
  for (const DistributedTensor& parameter : parameters) {
    const bool is_matrix = muon && parameter.ndim() > 1;
    (is_matrix ? matrices.parameters : others.parameters).push_back(parameter);
  }
  if (!muon) {
    DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create({others}));
    return std::make_unique<AdamW>(std::move(adamw));
  }
  DT_ASSIGN_OR_RETURN(Muon made, Muon::Create({matrices}, {others}));
  return std::make_unique<Muon>(std::move(made));
}

absl::StatusOr<Trained> Train(const TrainingRun& run) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(run.mesh));
  DT_ASSIGN_OR_RETURN(
      std::vector<Trained> ranks,
      OnSuiteRanks(
          mesh.size(), [&](Context& context) { return RankRun(context, run).Run(); }, run.options));
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    ranks[rank].traffic = ranks[0].traffic;  // uneven shards receive unlike bytes
    if (ranks[rank] == ranks[0]) continue;
    return absl::InternalError(absl::StrCat("rank ", rank, " trained other values than rank 0"));
  }
  return std::move(ranks[0]);
}

double WorstRelativeRms(const Trained::Values& a, const Trained::Values& b) {
  double worst = a.size() == b.size() ? 0 : HUGE_VAL;
  for (const auto& [path, values] : b) worst = std::max(worst, RelativeRms(a.at(path), values));
  return worst;
}

}  // namespace dtensor
