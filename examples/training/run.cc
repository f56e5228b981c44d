#include "dtensor/examples/training/run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>

#include "absl/strings/str_format.h"
#include "dtensor/checkpoint/folder.h"
#include "dtensor/checkpoint/save.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/file_system.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/gather_values.h"
#include "dtensor/tensor/join_world.h"
#include "dtensor/tools/program/memory.h"

namespace dtensor::training {
namespace {

// The global values of any floating-point tensor, on all ranks of `mesh`: a stage of a pipeline has
// tensors on some of them only. Collective.
absl::StatusOr<std::vector<float>> AsFloats(const DistributedTensor& tensor,
                                            const DeviceMesh& mesh) {
  const NoGrad no_grad(tensor.context());
  DT_ASSIGN_OR_RETURN(const DistributedTensor floats, Cast(tensor, DType::kF32));
  DT_ASSIGN_OR_RETURN(const DistributedTensor whole,
                      floats.Redistribute(Layout::Replicated(mesh, tensor.ndim())));
  return ToGlobal<float>(whole);
}

absl::StatusOr<std::vector<NamedTensor>> Gather(Trainer& trainer, const DeviceMesh& mesh,
                                                bool gradients) {
  std::vector<NamedTensor> out;
  absl::Status status;
  trainer.model().VisitParameterPaths([&](const std::string& path, Parameter& parameter) {
    if (!status.ok()) return;
    if (gradients && !parameter.trained) return;
    auto values = AsFloats(gradients ? parameter.tensor.grad() : parameter.tensor, mesh);
    status = values.status();
    if (status.ok())
      out.push_back({path, {parameter.shape.begin(), parameter.shape.end()}, *std::move(values)});
  });
  DT_RETURN_IF_ERROR(status);
  return out;
}

// One rank of a run. Results that all ranks have are written by rank 0 only.
class RankRun {
 public:
  RankRun(Context& context, const TrainConfig& config, const Corpus& corpus,
          const TrainOptions& options, RunResult& result)
      : context_(context), config_(config), corpus_(corpus), options_(options), result_(result) {}

  absl::Status Run() {
    TrainConfig config = config_;
    config.text_digest = corpus_.digest();
    DT_ASSIGN_OR_RETURN(trainer_, Trainer::Create(context_, config));
    DT_ASSIGN_OR_RETURN(const bool resumed, Resume());
    if (!resumed) DT_RETURN_IF_ERROR(trainer_->Begin());
    if (options_.keep_tensors) DT_RETURN_IF_ERROR(KeepTensors());
    CheckpointSaver saver(context_, options_.save,
                          {.keep_last = options_.keep_last, .async = true});
    context_.device().ResetPeak();
    int64_t saved = trainer_->step();
    const auto save = [&] {
      saved = trainer_->step();
      return trainer_->Save(saver);
    };
    for (int64_t step = trainer_->step(); step < config_.steps; ++step) {
      DT_RETURN_IF_ERROR(Step(step));
      if (diverged_) break;
      const bool saves = !options_.save.empty() && (step + 1) % options_.save_every == 0;
      if (saves) DT_RETURN_IF_ERROR(save());
      if (options_.stop_below && (step + 1) % 25 == 0) {
        DT_ASSIGN_OR_RETURN(const double loss, HeldOutLoss());
        if (loss < *options_.stop_below) break;
      }
    }
    const bool is_saved = options_.save.empty() || saved == trainer_->step();
    if (!is_saved && !diverged_) DT_RETURN_IF_ERROR(save());
    DT_RETURN_IF_ERROR(saver.Wait());
    FinishClock();
    DT_RETURN_IF_ERROR(GatherCounted());
    DT_ASSIGN_OR_RETURN(const double loss, HeldOutLoss());
    diverged_ = diverged_ || !std::isfinite(loss);
    if (options_.finish && !diverged_) DT_RETURN_IF_ERROR(options_.finish(trainer_->model()));
    if (context_.rank() != 0) return absl::OkStatus();
    result_.heldout_loss = loss;
    result_.diverged = diverged_;
    return absl::OkStatus();
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Whether there is a checkpoint; rank 0 finds out for all. Also finds out now whether saving
  // would fail later.
  absl::StatusOr<bool> FindSaved() {
    absl::Status refused;
    int32_t found = 0;
    if (context_.rank() == 0) {
      refused = MakeFolders(FileSystem::OfThisMachine(), options_.save);
      const absl::StatusOr<std::string> latest = FindCheckpoint(options_.save);
      found = refused.ok() && latest.ok() ? 1 : 0;
      if (found != 0 && !options_.resume) {
        refused = InvalidArgument({"--save: there is another run's checkpoint '", *latest,
                                   "'; go on from it by --resume, or take another folder"});
      }
    }
    DT_RETURN_IF_ERROR(AgreeOn(context_, refused));
    DT_ASSIGN_OR_RETURN(const auto all, GatherValues(context_, found));
    return all[0] != 0;
  }

  // Resumes the run if there is a checkpoint.
  absl::StatusOr<bool> Resume() {
    if (options_.save.empty()) return false;
    DT_ASSIGN_OR_RETURN(const bool found, FindSaved());
    if (!found) return false;
    DT_RETURN_IF_ERROR(trainer_->Resume(options_.save));
    first_step_ = trainer_->step();
    if (context_.rank() == 0) result_.first_step = first_step_;
    return true;
  }

  absl::Status KeepTensors() {
    DT_ASSIGN_OR_RETURN(auto weights, Gather(*trainer_, config_.mesh, /*gradients=*/false));
    const std::vector<int32_t> tokens = corpus_.TrainingBatch(config_.batch, config_.seed, 0);
    const RandomState random = context_.random();  // the first step draws what this has drawn
    DT_RETURN_IF_ERROR(trainer_->LossAndGradients(tokens).status());
    context_.random() = random;
    DT_ASSIGN_OR_RETURN(auto gradients, Gather(*trainer_, config_.mesh, /*gradients=*/true));
    trainer_->model().VisitParameters(
        [](const std::string&, Parameter& parameter) { parameter.tensor.ClearGrad(); });
    if (context_.rank() != 0) return absl::OkStatus();
    result_.initial_weights = std::move(weights);
    result_.first_gradients = std::move(gradients);
    return absl::OkStatus();
  }

  absl::Status Step(int64_t step) {
    const std::vector<int32_t> tokens = corpus_.TrainingBatch(config_.batch, config_.seed, step);
    const TrafficTable before = context_.communicator().traffic();
    const Clock::time_point start = Clock::now();
    DT_ASSIGN_OR_RETURN(const Trainer::StepResult done, trainer_->Step(tokens));
    step_traffic_ = Since(context_.communicator().traffic(), before);
    // Reading the values is not part of the step's traffic: both scalars are replicated, so nothing
    // moves.
    DT_ASSIGN_OR_RETURN(const double loss, Item(done.loss));
    DT_ASSIGN_OR_RETURN(const double norm, Item(done.grad_norm));
    diverged_ = !std::isfinite(loss);  // the same on every rank
    if (step > first_step_) {
      seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
      ++timed_steps_;
    }
    if (context_.rank() != 0) return absl::OkStatus();
    result_.losses.push_back(loss);
    result_.grad_norms.push_back(norm);
    if (options_.progress) options_.progress(step, loss);
    return absl::OkStatus();
  }

  void FinishClock() {
    if (context_.rank() != 0 || timed_steps_ == 0) return;
    result_.tokens_per_second =
        static_cast<double>(timed_steps_ * config_.batch * config_.sequence) / seconds_;
  }

  absl::Status GatherCounted() {
    const RankTraffic mine = {step_traffic_, context_.device().memory().peak_bytes};
    DT_ASSIGN_OR_RETURN(StepTraffic counted, GatherTraffic(context_, mine));
    if (context_.rank() == 0) result_.counted = std::move(counted);
    return absl::OkStatus();
  }

  absl::StatusOr<double> HeldOutLoss() {
    double sum = 0;
    for (int64_t i = 0; i < options_.eval_batches; ++i) {
      DT_ASSIGN_OR_RETURN(const DistributedTensor loss,
                          trainer_->Loss(corpus_.HeldOutBatch(config_.batch, i)));
      DT_ASSIGN_OR_RETURN(const double value, Item(loss));
      sum += value / static_cast<double>(options_.eval_batches);
    }
    return sum;
  }

  Context& context_;
  const TrainConfig& config_;
  const Corpus& corpus_;
  const TrainOptions& options_;
  RunResult& result_;
  std::unique_ptr<Trainer> trainer_;
  TrafficTable step_traffic_;
  double seconds_ = 0;
  int64_t timed_steps_ = 0, first_step_ = 0;
  bool diverged_ = false;
};

// `needed`: the bytes that all ranks of this host need.
absl::Status CheckMemory(Context& context, double needed) {
  if (context.device().kind() == Device::Kind::kCuda) return absl::OkStatus();  // the GPU checks
  const double free = static_cast<double>(MemoryAvailable());
  if (needed <= free / 8 * 7) return absl::OkStatus();  // other programs need some memory, too
  return InvalidArgument({absl::StrFormat(
      "--batch: training takes at least %.0f MiB on all ranks, and %.0f MiB are free; take a "
      "smaller --batch, --seq, --dim or --layers",
      needed / (1 << 20), free / (1 << 20))});
}

// A lower bound: weights, gradients and AdamW's two states, and what each block saves for each
// token. Configurations that pass this check can be predicted: their byte counts fit into int64.
double LeastBytes(const TrainConfig& config) {
  const auto dim = static_cast<double>(config.model.dim);
  const auto layers = static_cast<double>(config.model.layers);
  const double weights = layers * 3 * dim * static_cast<double>(config.model.mlp_hidden());
  const double tokens =
      static_cast<double>(config.batch) * static_cast<double>(config.sequence + 1);
  return static_cast<double>(SizeOf(config.dtype)) * (4 * weights + tokens * dim * layers);
}

// The ranks on this rank's host, by its name: those that share the machine's memory. (Which ranks
// can read each other's tensors is another question, which the library answers by boot, user,
// container and DTENSOR_HOST: docs/running.md.) Collective.
absl::StatusOr<std::vector<int>> RanksOfThisHost(Context& context) {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> names, GatherBytes(context, name));
  std::vector<int> ranks;
  for (size_t rank = 0; rank < names.size(); ++rank) {
    if (names[rank] == name) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

// The launcher may have started a wrong number of processes.
absl::Status CheckWorld(const TrainConfig& config, int size) {
  if (config.mesh.size() == size) return absl::OkStatus();
  return InvalidArgument({absl::StrFormat(
      "--mesh: %s has %d ranks, and %d processes were started; start %d, or take another mesh",
      config.mesh.ToString(), config.mesh.size(), size, config.mesh.size())});
}

// If ranks drew batches from different texts, they would train on neither.
absl::Status CheckSameText(Context& context, const Corpus& corpus) {
  DT_ASSIGN_OR_RETURN(const auto digests, GatherValues(context, corpus.digest()));
  for (size_t rank = 1; rank < digests.size(); ++rank) {
    if (digests[rank] == digests[0]) continue;
    return InvalidArgument({absl::StrFormat(
        "--text: rank %d has another text than rank 0; give all ranks the same file", rank)});
  }
  return absl::OkStatus();
}

// Checks everything that can be refused before memory is allocated and ranks wait for each other.
// Collective; the result is the same on all ranks.
absl::StatusOr<StepTraffic> Prepare(Context& context, const TrainConfig& config,
                                    const absl::StatusOr<Corpus>& corpus) {
  DT_RETURN_IF_ERROR(AgreeOn(context, corpus.status()));
  DT_RETURN_IF_ERROR(AgreeOn(context, config.Validate()));
  DT_RETURN_IF_ERROR(AgreeOn(context, CheckWorld(config, context.world_size())));
  DT_RETURN_IF_ERROR(CheckSameText(context, *corpus));
  DT_ASSIGN_OR_RETURN(const std::vector<int> here, RanksOfThisHost(context));
  const double share = static_cast<double>(here.size()) / context.world_size();
  DT_RETURN_IF_ERROR(AgreeOn(context, CheckMemory(context, LeastBytes(config) * share)));
  const absl::StatusOr<RankTraffic> mine = PredictRank(config, context.rank());
  DT_RETURN_IF_ERROR(AgreeOn(context, mine.status()));
  DT_ASSIGN_OR_RETURN(StepTraffic predicted, GatherTraffic(context, *mine));
  double needed = 0;
  for (const int rank : here) needed += static_cast<double>(predicted.peak_bytes[rank]);
  DT_RETURN_IF_ERROR(AgreeOn(context, CheckMemory(context, needed)));
  return predicted;
}

double RelativeDifference(double a, double b) {
  return std::abs(a - b) / std::max({std::abs(a), std::abs(b), 1e-300});
}

double RelativeRms(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    size += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / std::max(size, 1e-300));
}

}  // namespace

absl::StatusOr<RunResult> Train(const TrainConfig& config, const absl::StatusOr<Corpus>& corpus,
                                const TrainOptions& options) {
  RunResult result;
  std::mutex mutex;
  absl::Status refused;  // guarded by mutex: the same for all ranks
  const auto run = [&](Context& context) -> absl::Status {
    absl::StatusOr<StepTraffic> predicted = Prepare(context, config, corpus);
    if (!predicted.ok()) {
      const std::lock_guard lock(mutex);
      refused = predicted.status();
      return absl::OkStatus();
    }
    if (context.rank() == 0) result.predicted = *std::move(predicted);
    return RankRun(context, config, *corpus, options, result).Run();
  };
  const int ranks = corpus.ok() ? config.mesh.size() : 1;
  const RunOptions threads = {.device = options.device,
                              .pin_threads = options.device == Device::Kind::kCpu && CanPin(ranks)};
  // If no rank trains, there is nothing to trace.
  const ContextOptions contexts =
      corpus.ok() ? options.contexts : ContextOptions{.read_environment = false};
  DT_RETURN_IF_ERROR(options.as_launched ? RunWorld(ranks, run, threads, contexts)
                                         : RunRanks(ranks, run, threads, contexts));
  DT_RETURN_IF_ERROR(refused);
  return result;
}

Difference Compare(const RunResult& run, const RunResult& reference) {
  Difference out;
  const size_t steps = std::min(run.losses.size(), reference.losses.size());
  for (size_t i = 0; i < steps; ++i) {
    out.loss = std::max(out.loss, RelativeDifference(run.losses[i], reference.losses[i]));
    out.grad_norm =
        std::max(out.grad_norm, RelativeDifference(run.grad_norms[i], reference.grad_norms[i]));
  }
  const size_t gradients = std::min(run.first_gradients.size(), reference.first_gradients.size());
  for (size_t i = 0; i < gradients; ++i) {
    const double rms =
        RelativeRms(run.first_gradients[i].values, reference.first_gradients[i].values);
    if (rms < out.gradient) continue;
    out.gradient = rms;
    out.worst_gradient = run.first_gradients[i].name;
  }
  return out;
}

}  // namespace dtensor::training
