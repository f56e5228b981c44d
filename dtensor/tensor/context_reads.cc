// Context: keeps track of what still reads a tensor and has to be finished before the tensor is
// written to.
#include <memory>
#include <utility>
#include <vector>

#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/late_send.h"
#include "dtensor/tensor/late_values.h"

namespace dtensor {
namespace {

bool IsSame(const std::weak_ptr<const void>& a, const std::weak_ptr<const void>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

}  // namespace

void Context::AddRead(const Tensor& source, const std::shared_ptr<PendingRedistribution>& reader) {
  std::erase_if(reads_, [](const Read& read) { return read.unfinished.expired(); });
  reads_.push_back({source.storage_id(), reader, reader->unfinished()});
}

void Context::AddLateRead(const Tensor& source, const std::shared_ptr<LateValues>& reader) {
  std::erase_if(late_reads_, [](const LateRead& read) {
    const auto values = read.reader.lock();
    return values == nullptr || values->made();
  });
  late_reads_.push_back({source.storage_id(), reader});
}

absl::Status Context::FinishBegun() {
  DT_RETURN_IF_ERROR(FinishLateSends());
  for (const LateRead& read : std::exchange(late_reads_, {})) {
    if (const auto values = read.reader.lock()) DT_RETURN_IF_ERROR(values->Make());
  }
  for (const Read& read : std::exchange(reads_, {})) {
    if (const auto reader = read.reader.lock()) DT_RETURN_IF_ERROR(reader->Wait().status());
  }
  return communicator_.FinishDropped();
}

void Context::ForgetReads() {
  reads_.clear();
  late_reads_.clear();
  late_sends_.clear();
}

absl::Status Context::FinishLateSends(const Spec* from, const Spec* to) {
  absl::Status status;
  std::vector<std::shared_ptr<LateSend>> others;
  for (std::shared_ptr<LateSend>& send : std::exchange(late_sends_, {})) {
    if (from == nullptr || send->IsBetween(*from, *to)) {
      status.Update(send->Make());
    } else {
      others.push_back(std::move(send));
    }
  }
  late_sends_ = std::move(others);
  return status;
}

absl::Status Context::FinishLateReads(const std::weak_ptr<const void>& storage) {
  absl::Status status;
  const std::vector<LateRead> reads = std::move(late_reads_);
  late_reads_.clear();
  for (const LateRead& read : reads) {
    const auto values = read.reader.lock();
    if (values == nullptr || values->made()) continue;
    if (IsSame(read.storage, storage)) {
      status.Update(values->Make());
    } else {
      late_reads_.push_back(read);
    }
  }
  return status;
}

absl::Status Context::FinishReads(const Tensor& root) {
  if (!late_reads_.empty()) DT_RETURN_IF_ERROR(FinishLateReads(root.storage_id()));
  if (reads_.empty()) return absl::OkStatus();
  const std::weak_ptr<const void> storage = root.storage_id();
  const auto reads_it = [&](const Read& read) { return IsSame(read.storage, storage); };
  absl::Status status;
  for (const Read& read : reads_) {
    if (read.unfinished.expired() || !reads_it(read)) continue;
    const auto reader = read.reader.lock();
    status.Update(reader != nullptr ? reader->Wait().status() : communicator_.FinishDropped());
  }
  std::erase_if(reads_,
                [&](const Read& read) { return read.unfinished.expired() || reads_it(read); });
  return status;
}

}  // namespace dtensor
