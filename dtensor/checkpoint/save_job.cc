#include "dtensor/checkpoint/save_job.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "dtensor/checkpoint/folder.h"
#include "dtensor/checkpoint/slice_file.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/io/safetensors/safetensors_format.h"
#include "dtensor/runtime/kernels/read_bytes.h"

namespace dtensor {
namespace {

constexpr absl::string_view kDone = ".done";
constexpr absl::string_view kFailed = "failed\n";

std::string FolderOf(const SaveJob& job) { return absl::StrCat(job.folder, "/", job.temporary); }

// The folder's name while one rank commits; no other rank uses the folder any more.
std::string CommittingFolderOf(const SaveJob& job) {
  const absl::string_view name = job.temporary;
  constexpr absl::string_view kEnd = ".tmp";
  return absl::StrCat(job.folder, "/", name.substr(0, name.size() - kEnd.size()), "-commit", kEnd);
}

std::string DoneName(int rank) { return absl::StrFormat("rank-%05d%s", rank, kDone); }

int64_t BytesOf(const OwnSlice& slice) {
  return NumElements(slice.entry.shape) * SizeOf(slice.entry.dtype);
}

absl::Status AppendSlice(const OwnSlice& slice, SliceFileWriter& writer) {
  if (slice.bytes != nullptr) return writer.Append(slice.bytes.get(), BytesOf(slice));
  return kernels::ReadBytes(
      slice.local, [&](const char* bytes, int64_t size) { return writer.Append(bytes, size); });
}

// The file has an empty name if this rank has nothing to write.
absl::StatusOr<CheckpointFile> WriteFile(const SaveJob& job) {
  if (job.slices.empty()) return CheckpointFile{};
  std::vector<SafetensorsEntry> entries;
  for (const OwnSlice& slice : job.slices) entries.push_back(slice.entry);
  DT_ASSIGN_OR_RETURN(
      SliceFileWriter writer,
      SliceFileWriter::Create(*job.files, FolderOf(job), SliceFileName(job.rank), entries));
  for (const OwnSlice& slice : job.slices) {
    const absl::Status status = AppendSlice(slice, writer);
    if (!status.ok()) return OfSafetensor(slice.entry.name, status);
  }
  absl::StatusOr<CheckpointFile> file = writer.Finish();
  // Buffered bytes are written last, so an error belongs to the last slice.
  if (!file.ok()) return OfSafetensor(job.slices.back().entry.name, file.status());
  return file;
}

std::string DoneText(const CheckpointFile& file) {
  return absl::StrCat("ok ", file.bytes, " ", file.header_bytes, " ", file.header_crc32c, " ",
                      file.slice_bytes, " ", file.table_crc32c, "\n");
}

absl::StatusOr<CheckpointFile> ParseDone(int rank, const std::string& text) {
  CheckpointFile file;
  const std::vector<absl::string_view> words =
      absl::StrSplit(absl::string_view(text).substr(0, text.size() - 1), ' ');
  const bool ok = words.size() == 6 && words[0] == "ok" &&
                  absl::SimpleAtoi(words[1], &file.bytes) &&
                  absl::SimpleAtoi(words[2], &file.header_bytes) &&
                  absl::SimpleAtoi(words[3], &file.header_crc32c) &&
                  absl::SimpleAtoi(words[4], &file.slice_bytes) &&
                  absl::SimpleAtoi(words[5], &file.table_crc32c);
  file.name = SliceFileName(rank);
  if (ok) return file;
  return absl::DataLossError(absl::StrCat("'", DoneName(rank), "' is not what a rank writes"));
}

// The file appears under its name as a whole or not at all.
absl::Status SayDone(const SaveJob& job, const absl::StatusOr<CheckpointFile>& file) {
  const std::string name = absl::StrCat(FolderOf(job), "/", DoneName(job.rank));
  const std::string part = absl::StrCat(name, ".part");
  DT_RETURN_IF_ERROR(
      WriteText(*job.files, part, file.ok() ? DoneText(*file) : std::string(kFailed)));
  return job.files->Rename(part, name);
}

// Whether every rank has said that it is done. If the folder is gone, another rank is committing.
bool AllAreDone(const SaveJob& job) {
  const absl::StatusOr<std::vector<std::string>> names = job.files->List(FolderOf(job));
  if (!names.ok()) return false;
  return std::count_if(names->begin(), names->end(), [](const std::string& name) {
           return absl::EndsWith(name, kDone);
         }) == job.index.ranks;
}

absl::StatusOr<std::vector<std::string>> ReadDone(const SaveJob& job, const std::string& folder) {
  constexpr int64_t kMost = 1000;
  std::vector<std::string> texts;
  for (int rank = 0; rank < job.index.ranks; ++rank) {
    DT_ASSIGN_OR_RETURN(texts.emplace_back(),
                        ReadText(*job.files, absl::StrCat(folder, "/", DoneName(rank)), kMost));
  }
  return texts;
}

// The folder belongs to this rank alone. The checkpoint counts from the last call on, which renames
// the folder.
absl::Status NameFolder(const SaveJob& job, const std::string& folder,
                        const std::vector<std::string>& done) {
  CheckpointIndex index = job.index;
  for (const int rank : job.file_ranks) {
    DT_ASSIGN_OR_RETURN(index.files.emplace_back(), ParseDone(rank, done[rank]));
  }
  DT_RETURN_IF_ERROR(
      WriteText(*job.files, absl::StrCat(folder, "/", kCheckpointIndexFile), index.ToText()));
  for (int rank = 0; rank < job.index.ranks; ++rank) {
    DT_RETURN_IF_ERROR(job.files->Remove(absl::StrCat(folder, "/", DoneName(rank))));
  }
  DT_RETURN_IF_ERROR(job.files->SyncFolder(folder));
  return job.files->Rename(folder, absl::StrCat(job.folder, "/", CheckpointName(job.index.step)));
}

absl::Status SyncNames(const SaveJob& job) {
  const absl::Status synced = job.files->SyncFolder(job.folder);
  if (synced.ok()) return synced;
  return absl::Status(synced.code(),
                      absl::StrCat(CheckpointName(job.index.step),
                                   " is saved, but may not outlast a crash: ", synced.message()));
}

absl::Status KeepLast(const SaveJob& job) {
  if (job.keep_last == 0) return absl::OkStatus();
  const absl::Status removed =
      internal::RemoveOlder(*job.files, job.folder, job.index.step, job.keep_last);
  if (removed.ok()) return removed;
  // Not kAlreadyExists, which is reserved for a step that was saved before.
  return absl::UnavailableError(
      absl::StrCat(CheckpointName(job.index.step), " is saved, but an ",
                   "older checkpoint cannot be removed: ", removed.message()));
}

// Nullopt if another rank was faster, or if some rank had failed, which then reports that itself.
std::optional<absl::Status> Commit(const SaveJob& job) {
  const std::string folder = CommittingFolderOf(job);
  const absl::Status renamed = job.files->Rename(FolderOf(job), folder);
  if (absl::IsNotFound(renamed)) return std::nullopt;
  if (!renamed.ok()) return NotSaved(job, renamed);
  const absl::StatusOr<std::vector<std::string>> done = ReadDone(job, folder);
  const bool failed = done.ok() && std::find(done->begin(), done->end(), kFailed) != done->end();
  absl::Status status = done.status();
  if (status.ok() && !failed) status = NameFolder(job, folder, *done);
  if (status.ok() && !failed) {
    status = SyncNames(job);
    return status.ok() ? KeepLast(job) : status;
  }
  RemoveFolder(*job.files, folder).IgnoreError();
  return failed ? std::nullopt : std::optional(NotSaved(job, status));
}

SaveOutcome Run(const SaveJob& job) {
  SaveOutcome outcome;
  absl::StatusOr<CheckpointFile> file = WriteFile(job);
  if (file.ok() && job.world != nullptr && !job.world->failure().ok()) {
    file = job.world->failure();
  }
  const absl::Status said = SayDone(job, file);
  outcome.written = file.ok() ? said : file.status();
  if (!said.ok() || !AllAreDone(job)) return outcome;
  const std::optional<absl::Status> committed = Commit(job);
  outcome.committer = committed.has_value();
  outcome.committed = committed.value_or(absl::OkStatus());
  return outcome;
}

}  // namespace

absl::Status TakeSnapshot(OwnSlice& slice) {
  slice.bytes.reset(new (std::nothrow) char[BytesOf(slice)]);
  if (slice.bytes == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("the host has no memory for ", BytesOf(slice),
                                                     " B of a copy; save without ", "`async`"));
  }
  char* at = slice.bytes.get();
  DT_RETURN_IF_ERROR(kernels::ReadBytes(slice.local, [&](const char* bytes, int64_t size) {
    at = std::copy(bytes, bytes + size, at);
    return absl::OkStatus();
  }));
  slice.local = Tensor();
  return absl::OkStatus();
}

absl::Status NotSaved(const SaveJob& job, const absl::Status& error) {
  return absl::Status(error.code(),
                      absl::StrCat(error.message(), "; step ", job.index.step,
                                   " is not saved, and what was saved before is still there"));
}

std::string SliceFileName(int rank) { return absl::StrFormat("rank-%05d.safetensors", rank); }

SaveOutcome RunSaveJob(const SaveJob& job) {
  SaveOutcome outcome;
  const absl::Status status = NoThrow([&] {
    outcome = Run(job);
    return absl::OkStatus();
  });
  if (!status.ok()) outcome.written = status;  // for example, out of memory
  return outcome;
}

// No other rank commits at this time: if the folder is not there, it was either renamed to its
// final name or lost.
absl::Status CommitSaveJob(const SaveJob& job) {
  if (const std::optional<absl::Status> status = Commit(job)) return *status;
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListCheckpoints(job.folder, *job.files));
  if (std::binary_search(steps.begin(), steps.end(), job.index.step)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("'", FolderOf(job),
                                          "', which all ranks have written, is ", "gone; step ",
                                          job.index.step, " is not saved"));
}

void DropSaveJob(const SaveJob& job) {
  RemoveFolder(*job.files, FolderOf(job)).IgnoreError();
  RemoveFolder(*job.files, CommittingFolderOf(job)).IgnoreError();
}

}  // namespace dtensor
