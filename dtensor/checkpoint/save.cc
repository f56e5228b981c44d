#include "dtensor/checkpoint/save.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/folder.h"
#include "dtensor/checkpoint/index.h"
#include "dtensor/checkpoint/save_job.h"
#include "dtensor/checkpoint/slice_plan.h"
#include "dtensor/checkpoint/world_content.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/quiet_thread.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors/safetensors_format.h"
#include "dtensor/tensor/gather_values.h"
#include "dtensor/tensor/wait_for.h"

namespace dtensor {
namespace {

constexpr absl::string_view kCall = "SaveCheckpoint: ";

absl::Status OfSave(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(kCall, status.message()));
}

absl::Status CheckTensor(const Context& context, const std::string& name,
                         const DistributedTensor& tensor) {
  DT_RETURN_IF_ERROR(CheckIndexText("the name", name));
  if (name.empty() || name == kChecksumTable || name == kSafetensorsMetadata) {
    return InvalidArgument({"no tensor can be called '", name, "'"});
  }
  if (!tensor.defined()) return InvalidArgument({"tensor '", name, "' is undefined"});
  if (&tensor.context() != &context) {
    return InvalidArgument({"tensor '", name, "' belongs to another Context"});
  }
  if (!tensor.layout().is_partial()) return absl::OkStatus();
  return InvalidArgument({"tensor '", name, "', ", tensor.ToString(),
                          ", is Partial: no rank has its values; Redistribute it first"});
}

absl::Status CheckContent(const Context& context, const CheckpointContent& content) {
  if (content.step < 0) {
    return InvalidArgument({"step ", absl::StrCat(content.step), " is negative"});
  }
  for (const auto& [name, tensor] : content.tensors) {
    DT_RETURN_IF_ERROR(CheckTensor(context, name, tensor));
  }
  for (const auto& [alias, name] : content.aliases) {
    DT_RETURN_IF_ERROR(CheckIndexText("the name", alias));
    if (!content.tensors.contains(name)) {
      return InvalidArgument(
          {"'", alias, "' is to be another name of '", name, "', and there is no such tensor"});
    }
    if (content.tensors.contains(alias)) {
      return InvalidArgument(
          {"'", alias, "' is a tensor, and cannot be another name of '", name, "' as well"});
    }
  }
  for (const auto& [name, text] : content.entries) {
    DT_RETURN_IF_ERROR(CheckIndexText("the entry", name));
    DT_RETURN_IF_ERROR(CheckIndexText(absl::StrCat("the text of entry '", name, "',"), text));
  }
  return absl::OkStatus();
}

// Called by rank 0 for all. Creates the folder for the checkpoint while it is being written, and
// returns its name.
absl::StatusOr<std::string> MakeTemporary(FileSystem& files, const std::string& folder,
                                          int64_t step) {
  DT_RETURN_IF_ERROR(MakeFolders(files, folder));
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListCheckpoints(folder, files));
  if (std::find(steps.begin(), steps.end(), step) != steps.end()) {
    return absl::AlreadyExistsError(
        absl::StrCat("'", folder, "' has a checkpoint of step ", step,
                     "; remove it, save another step, or take another folder"));
  }
  internal::RemoveAbandoned(files, folder);
  std::string name = internal::TemporaryCheckpointName(step);
  DT_RETURN_IF_ERROR(files.MakeFolder(absl::StrCat(folder, "/", name)));
  return name;
}

// Waits for tensors in flight, and computes values that are computed on first use. All ranks do
// this in the order of the names, even for tensors of which the rank writes nothing.
absl::Status SettleAll(const CheckpointContent& content) {
  for (const auto& [name, tensor] : content.tensors) {
    const absl::Status status = WaitFor(tensor);
    if (status.ok()) continue;
    return absl::Status(status.code(), absl::StrCat("tensor '", name, "': ", status.message()));
  }
  return absl::OkStatus();
}

// A part of what this rank holds, as a view of its local tensor.
Tensor LocalPart(const DistributedTensor& tensor, const Region& part) {
  const auto coordinate = tensor.mesh().Coordinate(tensor.context().rank());
  const Region held = Regions(tensor.layout(), tensor.shape(), coordinate);
  Tensor view = tensor.local();
  for (size_t d = 0; d < held.size(); ++d) {
    // A rank's share is contiguous within what it holds.
    const int64_t begin = MatchIndexSets(held[d], part[d])[0].src;
    view = view.Narrow(static_cast<int>(d), begin, part[d].size());
  }
  return view;
}

// Where the next slice of a file begins.
struct FileEnd {
  int64_t bytes = 0, blocks = 0;
  size_t slices_of_tensor = 0;  // how many slices of the last tensor there are
  size_t tensor = 0;
};

class JobBuilder {
 public:
  JobBuilder(Context& context, const CheckpointContent& content, const WorldContent& world,
             SaveJob& job)
      : context_(context), content_(content), world_(world), job_(job) {}

  void Build() {
    job_.rank = context_.rank();
    CheckpointIndex& index = job_.index;
    index.step = content_.step;
    index.ranks = context_.world_size();
    index.entries = content_.entries;
    index.aliases = {world_.aliases.begin(), world_.aliases.end()};
    std::vector<PlannedTensor> planned;
    for (const auto& [name, tensor] : world_.tensors) {
      names_.push_back(name);
      planned.push_back(tensor);
      index.tensors[name] = {tensor.dtype, tensor.shape, {}};
    }
    std::vector<PlannedSlice> slices = PlanSlices(planned, context_.world_size());
    for (const PlannedSlice& slice : slices) ends_[slice.rank];
    for (const auto& [rank, end] : ends_) job_.file_ranks.push_back(rank);
    for (PlannedSlice& slice : slices) Add(std::move(slice));
  }

 private:
  void Add(PlannedSlice slice) {
    const std::string& name = names_[slice.tensor];
    CheckpointTensor& tensor = job_.index.tensors[name];
    FileEnd& end = ends_[slice.rank];
    if (end.tensor != slice.tensor) end.slices_of_tensor = 0;
    end.tensor = slice.tensor;
    const size_t number = end.slices_of_tensor++;
    const int64_t bytes = NumElements(slice.region) * SizeOf(tensor.dtype);
    if (slice.rank == context_.rank()) AddOwn(name, number, slice.region);
    const auto file = std::lower_bound(job_.file_ranks.begin(), job_.file_ranks.end(), slice.rank);
    tensor.slices.push_back({static_cast<size_t>(file - job_.file_ranks.begin()), end.bytes,
                             end.blocks, std::move(slice.region)});
    end.bytes += bytes;
    end.blocks += ChecksumBlocks(bytes);
  }

  void AddOwn(const std::string& name, size_t number, const Region& region) {
    const DistributedTensor& tensor = content_.tensors.at(name);
    OwnSlice& own = job_.slices.emplace_back();
    own.entry.name = number == 0 ? name : FreeName(name, number);
    own.entry.dtype = tensor.dtype();
    for (const IndexSet& set : region) own.entry.shape.push_back(set.size());
    own.local = LocalPart(tensor, region);
  }

  // A name for a further slice of a tensor; it is never looked up. It must differ from tensors'
  // names.
  std::string FreeName(const std::string& name, size_t number) {
    std::string free;
    do free = absl::StrCat(name, "#", number++);
    while (content_.tensors.contains(free) || !slice_names_.insert(free).second);
    return free;
  }

  Context& context_;
  const CheckpointContent& content_;  // this rank's
  const WorldContent& world_;
  SaveJob& job_;
  std::vector<std::string> names_;
  std::map<int, FileEnd> ends_;  // by rank
  std::set<std::string> slice_names_;
};

absl::Status TakeSnapshots(SaveJob& job) {
  for (OwnSlice& slice : job.slices) {
    const absl::Status status = TakeSnapshot(slice);
    if (!status.ok()) return OfSafetensor(slice.entry.name, status);
  }
  return absl::OkStatus();
}

// What ranks exchange when they have written.
struct RankState {
  bool written = false, committer = false, committed = false;
};

// The error of a rank's own file.
absl::Status OfRank(const SaveJob& job, const absl::Status& status) {
  if (status.ok()) return status;
  const bool unshared = absl::IsNotFound(status);
  return NotSaved(
      job, absl::Status(status.code(),
                        absl::StrCat(status.message(),
                                     unshared ? "; all ranks need the same folder, on a file "
                                                "system that their hosts share"
                                              : "")));
}

}  // namespace

struct CheckpointSaver::Pending {
  SaveJob job;
  SaveOutcome outcome;
  std::atomic<bool> written{false};
  std::thread thread;  // not joinable if the job was done at once

  void Run() {
    outcome = RunSaveJob(job);
    job.slices.clear();
    written.store(true, std::memory_order_release);
  }
  bool Start() {
    return NoThrow([this] {
             thread = QuietThread([this] { Run(); });
             return absl::OkStatus();
           })
        .ok();
  }
  ~Pending() {
    if (thread.joinable()) thread.join();
  }
};

CheckpointSaver::CheckpointSaver(Context& context, std::string folder, const SaveOptions& options)
    : context_(context),
      folder_(std::move(folder)),
      place_(options.files == nullptr ? AbsolutePath(folder_) : folder_),
      options_(options) {}
CheckpointSaver::~CheckpointSaver() = default;
CheckpointSaver::CheckpointSaver(CheckpointSaver&&) noexcept = default;

bool CheckpointSaver::written() const {
  return pending_ == nullptr || pending_->written.load(std::memory_order_acquire);
}

absl::Status CheckpointSaver::Begin(const CheckpointContent& content) {
  DT_RETURN_IF_ERROR(AgreeOn(context_, CheckContent(context_, content)));
  DT_ASSIGN_OR_RETURN(const WorldContent world, GatherContent(context_, folder_, content));
  DT_RETURN_IF_ERROR(AgreeOn(context_, SettleAll(content)));
  auto pending = std::make_unique<Pending>();
  SaveJob& job = pending->job;
  job.files = options_.files != nullptr ? options_.files : &FileSystem::OfThisMachine();
  job.folder = place_;
  job.keep_last = std::max(options_.keep_last, 0);
  if (!options_.async) job.world = &context_.communicator();
  absl::StatusOr<std::string> temporary = std::string();
  if (context_.rank() == 0) temporary = MakeTemporary(*job.files, place_, content.step);
  DT_RETURN_IF_ERROR(AgreeOn(context_, temporary.status()));
  DT_ASSIGN_OR_RETURN(const auto names, GatherBytes(context_, *temporary, "SaveCheckpoint"));
  job.temporary = names[0];
  JobBuilder(context_, content, world, job).Build();
  absl::Status snapshot;
  if (options_.async) snapshot = TakeSnapshots(job);
  if (options_.async) snapshot = AgreeOn(context_, OfRank(job, snapshot));
  if (!snapshot.ok()) {
    if (context_.rank() == 0) DropSaveJob(job);
    return snapshot;
  }
  pending_ = std::move(pending);
  // If the system cannot start a thread, the rank writes itself.
  if (!options_.async || !pending_->Start()) pending_->Run();
  return absl::OkStatus();
}

absl::Status CheckpointSaver::Save(const CheckpointContent& content) {
  DT_RETURN_IF_ERROR(Wait());
  DT_RETURN_IF_ERROR(OfSave(Begin(content)));
  return options_.async ? absl::OkStatus() : Wait();
}

absl::Status CheckpointSaver::Wait() {
  if (pending_ == nullptr) return absl::OkStatus();
  const std::unique_ptr<Pending> pending = std::move(pending_);
  if (pending->thread.joinable()) pending->thread.join();
  const SaveJob& job = pending->job;
  SaveOutcome& outcome = pending->outcome;
  const RankState mine = {outcome.written.ok(), outcome.committer,
                          outcome.committer && outcome.committed.ok()};
  DT_ASSIGN_OR_RETURN(const std::vector<RankState> ranks, GatherValues(context_, mine));
  // From here on no rank works on the job: all have arrived.
  if (!absl::c_all_of(ranks, [](const RankState& rank) { return rank.written; })) {
    if (context_.rank() == 0) DropSaveJob(job);
    return OfSave(AgreeOn(context_, OfRank(job, outcome.written)));
  }
  const bool committed =
      absl::c_any_of(ranks, [](const RankState& rank) { return rank.committer; });
  if (!committed && context_.rank() == 0) outcome.committed = CommitSaveJob(job);
  // If several ranks tried to commit, one may have failed because another one succeeded.
  if (absl::c_any_of(ranks, [](const RankState& rank) { return rank.committed; })) {
    return absl::OkStatus();
  }
  const absl::Status status = AgreeOn(context_, outcome.committed);
  if (!status.ok() && context_.rank() == 0) DropSaveJob(job);  // a renamed checkpoint stays
  return OfSave(status);
}

absl::Status SaveCheckpoint(Context& context, const std::string& folder,
                            const CheckpointContent& content, const SaveOptions& options) {
  SaveOptions at_once = options;
  at_once.async = false;
  return CheckpointSaver(context, folder, at_once).Save(content);
}

}  // namespace dtensor
