#include "dtensor/tests/plans/model_runs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/optim/optimizer.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/fully_shard.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "dtensor/tests/training.h"

namespace dtensor {
namespace {

constexpr int64_t kBatch = 4;

// One rank's part of a run.
class RankRun {
 public:
  RankRun(Context& context, const TestedModel& tested, const ModelRun& run)
      : context_(context), tested_(tested), run_(run), model_(tested.make()) {}

  absl::StatusOr<ModelOutcome> Run() {
    DT_RETURN_IF_ERROR(Prepare());
    DT_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer,
                        AdamWOrMuon(model_->Parameters(), run_.muon));
    for (int step = 0; step < std::max(run_.steps, 1); ++step) {
      DT_RETURN_IF_ERROR(Step(step));
      if (run_.steps > 0) DT_RETURN_IF_ERROR(optimizer->Step(0.05));
      optimizer->ClearGradients();
    }
    DT_RETURN_IF_ERROR(ReadAll(/*gradients=*/false, outcome_.weights));
    return std::move(outcome_);
  }

 private:
  absl::Status Prepare() {
    context_.random().seed = 11;
    model_->SetDType(run_.dtype);
    model_->SetTraining(run_.training);
    model_->VisitParameters([](const std::string&, Parameter& parameter) {
      if (parameter.shape.size() == 1) parameter.init = ParameterInit::Normal(0.5);
      if (parameter.is_adapter) parameter.init = ParameterInit::Normal(0.3);  // no 0
    });
    DT_ASSIGN_OR_RETURN(DeviceMesh mesh, DeviceMesh::Parse(run_.mesh));
    DT_ASSIGN_OR_RETURN(
        TensorParallelism planned,
        tested_.plan(mesh, {.sequence_parallel = run_.sequence_parallel, .seed = 3}));
    if (mesh.Find("fsdp").ok()) {
      planned.plan.Add({tested_.units, FullyShard("fsdp", run_.fully_shard)});
      planned.plan.Add({"", FullyShard("fsdp", run_.fully_shard)});
    }
    mesh_ = planned.mesh;
    DT_RETURN_IF_ERROR(
        planned.plan.Apply(*model_, context_, mesh_, {.seed = 3, .allow_uneven = run_.uneven}));
    if (tested_.load) DT_RETURN_IF_ERROR(tested_.load(*model_, mesh_));
    if (!run_.recompute) return absl::OkStatus();
    model_->VisitModules([](const std::string&, Module& module) {
      if (module.attention() != nullptr) module.set_recomputes(true);
    });
    return absl::OkStatus();
  }

  TensorOr Tokens(int64_t factor, int64_t below) {
    return StepTokens(context_, mesh_, {kBatch, run_.sequence}, factor, below);
  }

  TensorOr Loss(absl::Span<const DistributedTensor> results) {
    if (results.size() == 1) return CrossEntropyMean(results[0], Tokens(5, tested_.vocab));
    TensorOr loss;
    for (size_t i = 0; i < results.size(); ++i) {
      const DistributedTensor& result = results[i];
      std::vector<int> dims(result.ndim());
      for (int d = 0; d < result.ndim(); ++d) dims[d] = d;
      const TensorOr weights = RandomNormal(context_, Layout::Replicated(mesh_, result.ndim()),
                                            result.shape(), {.seed = 7 + i, .dtype = run_.dtype});
      const TensorOr sum = Sum(Mul(result, weights), dims);
      loss = i == 0 ? sum : Add(loss, sum);
    }
    return loss;
  }

  absl::Status Step(int step) {
    std::vector<TensorOr> operands = {Tokens(7, tested_.vocab)};
    while (operands.size() < model_->operand_names().size()) operands.push_back(Tokens(3, 2));
    context_.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> results, model_->Call(operands));
    if (step == 0) outcome_.forward = context_.communicator().traffic();
    DT_ASSIGN_OR_RETURN(const DistributedTensor loss, Loss(results));
    DT_RETURN_IF_ERROR(Backward(loss));
    DT_RETURN_IF_ERROR(ReduceGradients(model_->Parameters()));
    if (step > 0) return absl::OkStatus();
    for (size_t i = 0; i < results.size(); ++i) {
      DT_ASSIGN_OR_RETURN(outcome_.results[model_->result_names()[i]],
                          WideValues(results[i].Detach()));
    }
    return ReadAll(/*gradients=*/true, outcome_.gradients);
  }

  absl::Status ReadAll(bool gradients, ModelOutcome::Values& all) {
    absl::Status status;
    model_->VisitParameters([&](const std::string& path, Parameter& parameter) {
      if (gradients && !parameter.trained) return;
      if (status.ok()) status = ReadOne(path, parameter, gradients, all);
    });
    return status;
  }

  static absl::Status ReadOne(const std::string& path, const Parameter& parameter, bool gradient,
                              ModelOutcome::Values& all) {
    const DistributedTensor& tensor = parameter.tensor;
    DT_ASSIGN_OR_RETURN(const StateDict parts,
                        PartsOf(path, parameter, gradient ? tensor.grad() : tensor));
    for (const auto& [name, part] : parts) {
      DT_ASSIGN_OR_RETURN(all[name], WideValues(part));
    }
    return absl::OkStatus();
  }

  Context& context_;
  const TestedModel& tested_;
  const ModelRun& run_;
  DeviceMesh mesh_;
  std::unique_ptr<Module> model_;
  ModelOutcome outcome_;
};

double SumOfSquaresOf(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return sum;
}

// The root of the mean square of all values.
double RmsOf(const ModelOutcome::Values& all) {
  double sum = 0, count = 0;
  for (const auto& [name, values] : all) {
    sum += SumOfSquaresOf(values);
    count += static_cast<double>(values.size());
  }
  return std::sqrt(sum / std::max(count, 1.0));
}

std::string Differ(const ModelOutcome::Values& a, const ModelOutcome::Values& b, double floor,
                   double tolerance) {
  if (a.size() != b.size()) return absl::StrCat(a.size(), " tensors, not ", b.size(), "; ");
  std::string text;
  for (const auto& [name, values] : b) {
    const auto found = a.find(name);
    if (found == a.end() || found->second.size() != values.size()) {
      absl::StrAppend(&text, name, " is missing or of another size; ");
      continue;
    }
    std::vector<double> error = values;
    for (size_t i = 0; i < error.size(); ++i) error[i] -= found->second[i];
    const double n = std::max<double>(1, static_cast<double>(error.size()));
    const double rms = std::max(std::sqrt(SumOfSquaresOf(values) / n), floor);
    const double relative = std::sqrt(SumOfSquaresOf(error) / n) / rms;
    if (!(relative <= tolerance)) absl::StrAppend(&text, name, " by ", relative, "; ");
  }
  return text;
}

bool HasValuesOf(const ModelOutcome& a, const ModelOutcome& b) {
  return a.results == b.results && a.gradients == b.gradients && a.weights == b.weights;
}

}  // namespace

std::map<std::string, int64_t> CallsOf(const TrafficTable& table) {
  std::map<std::string, int64_t> calls;
  for (const auto& [key, traffic] : table) {
    calls[absl::StrCat(key.first, " ", ToString(key.second))] += traffic.calls;
  }
  return calls;
}

absl::StatusOr<ModelOutcome> RunModel(const TestedModel& tested, const ModelRun& run) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(run.mesh));
  DT_ASSIGN_OR_RETURN(std::vector<ModelOutcome> ranks,
                      OnSuiteRanks(mesh.size(), [&](Context& context) {
                        return RankRun(context, tested, run).Run();
                      }));
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (HasValuesOf(ranks[rank], ranks[0])) continue;
    return absl::InternalError(absl::StrCat(
        "rank ", rank, " ends with other values than rank 0: ", Difference(ranks[rank], ranks[0])));
  }
  return std::move(ranks[0]);
}

std::string Difference(const ModelOutcome& outcome, const ModelOutcome& reference,
                       const ModelTolerance& tolerance) {
  const double floor = RmsOf(reference.gradients) * tolerance.floor;
  return absl::StrCat(Differ(outcome.results, reference.results, 0, tolerance.error),
                      Differ(outcome.gradients, reference.gradients, floor, tolerance.error),
                      Differ(outcome.weights, reference.weights, 0, tolerance.of_weights));
}

}  // namespace dtensor
