// What a rank of the fake NCCL does by itself: meets the others, launches, hears of failures.
// Compiled without TSan's instrumentation (ordering.h).
#include "dtensor/tools/cuda/fake/nccl_comm.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "dtensor/tools/cuda/fake/fake.h"

using dtensor::fake_cuda::Enqueue;
using dtensor::fake_cuda::NcclHello;
using dtensor::fake_cuda::Refuse;
using dtensor::fake_cuda::SleepMicroseconds;

namespace {

// A word of news: its length, and what it says. kBye: the rank has finalized.
constexpr char kBye[] = "bye";

bool Says(const char* variable, const char* value) {
  const char* const said = std::getenv(variable);
  return said != nullptr && std::strcmp(said, value) == 0;
}

// In an abort or a revocation.
void HangIfTold() {
  if (!Says("DTENSOR_FAKE_NCCL_ABORT", "hangs")) return;
  dtensor::fake_cuda::ForgiveLeaks();
  while (true) SleepMicroseconds(1000000);
}

}  // namespace

ncclComm::ncclComm(const std::string& id, int size_in, int rank_in, int gpu_in, bool blocking_in)
    : size(size_in),
      rank(rank_in),
      gpu(gpu_in),
      blocking(blocking_in),
      id_(id),
      heard_(size_in),
      said_bye_(size_in, false),
      gone_(size_in, false) {}

void ncclComm::Start() {
  in_progress_ = has_group_ = working_ = true;
  std::thread([this] { Work(); }).detach();
}

void ncclComm::Work() {
  cudaSetDevice(gpu);
  const NcclHello mine = {rank, size, gpu, 0};
  const std::string wrong = links_.Meet(id_, mine, [this] { return is_stopped(); });
  if (!wrong.empty()) Fail(ncclInvalidUsage, wrong, false);
  {
    const std::lock_guard lock(mutex_);
    met_ = wrong.empty();
    if (!revoked_) in_progress_ = false;
  }
  while (!is_stopped()) {
    if (!Step()) SleepMicroseconds(100);
  }
  __atomic_store_n(&working_, false, __ATOMIC_RELEASE);
}

// Whether there was anything to do.
bool ncclComm::Step() {
  std::function<void()> task;
  {
    const std::lock_guard lock(mutex_);
    if (!met_) return false;
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) HearNews(peer);
    }
    if (finalizing_ && __atomic_load_n(&launched_, __ATOMIC_ACQUIRE) == 0) {
      if (!std::exchange(finalized_, true)) TellAll(kBye);
      bool all = true;
      for (int peer = 0; peer < size; ++peer) all = all && (peer == rank || said_bye_[peer]);
      if (all) in_progress_ = finalizing_ = false;
    }
    if (tasks_.empty()) return false;
    task = std::move(tasks_.front());
    tasks_.pop_front();
  }
  task();
  return true;
}

// --- What the host asks for.

void ncclComm::Launch(std::vector<Op> ops, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (stream_ != nullptr && stream != stream_) {
    Refuse("ncclGroupEnd", "only one stream for each communicator is faked");
  }
  stream_ = stream;
  in_progress_ = has_group_ = true;
  __atomic_add_fetch(&launched_, 1, __ATOMIC_ACQ_REL);
  if (Says("DTENSOR_FAKE_NCCL_GROUP", "stuck")) return;
  tasks_.push_back([this, ops = std::move(ops), stream] {
    Enqueue(stream, [this, ops] {
      __atomic_add_fetch(&running_, 1, __ATOMIC_SEQ_CST);
      if (!is_stopped()) Run(ops);
      __atomic_sub_fetch(&running_, 1, __ATOMIC_SEQ_CST);
      __atomic_sub_fetch(&launched_, 1, __ATOMIC_ACQ_REL);
    });
    const std::lock_guard done(mutex_);
    if (!revoked_) in_progress_ = false;
  });
}

void ncclComm::Finalize() {
  const std::lock_guard lock(mutex_);
  in_progress_ = finalizing_ = true;
}

bool ncclComm::Revoke() {
  HangIfTold();
  {
    const std::lock_guard lock(mutex_);
    if (revoked_ || finalizing_ || finalized_) return false;
    revoked_ = in_progress_ = true;
  }
  std::thread([this] {
    SleepMicroseconds(20000);
    Stop();
  }).detach();
  return true;
}

void ncclComm::Stop() {
  HangIfTold();
  __atomic_store_n(&stopped_, true, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&running_, __ATOMIC_SEQ_CST) > 0 ||
         __atomic_load_n(&working_, __ATOMIC_ACQUIRE)) {
    SleepMicroseconds(100);
  }
  const std::lock_guard lock(mutex_);
  in_progress_ = false;
  links_.Close();
}

bool ncclComm::in_progress() {
  const std::lock_guard lock(mutex_);
  return in_progress_;
}

ncclResult_t ncclComm::Poll() {
  const std::lock_guard lock(mutex_);
  const ncclResult_t error = revoked_ ? ncclSuccess : error_;
  if (error == ncclSuccess && in_progress_) return ncclInProgress;
  if (error == ncclSuccess) has_group_ = false;
  return error;
}

bool ncclComm::has_group() {
  const std::lock_guard lock(mutex_);
  return has_group_;
}

bool ncclComm::is_revoked() {
  const std::lock_guard lock(mutex_);
  return revoked_;
}

bool ncclComm::is_finalized() {
  const std::lock_guard lock(mutex_);
  return finalized_;
}

ncclResult_t ncclComm::error() {
  const std::lock_guard lock(mutex_);
  return revoked_ ? ncclSuccess : error_;  // nccl.h: what went wrong before is over
}

const char* ncclComm::error_text() {
  const std::lock_guard lock(mutex_);
  return error_text_.c_str();  // which is written once
}

// --- Failures.

void ncclComm::Fail(ncclResult_t error, const std::string& text, bool tell) {
  const std::lock_guard lock(mutex_);
  if (error_ != ncclSuccess) return;
  error_ = error;
  error_text_ = text;
  __atomic_store_n(&failed_, true, __ATOMIC_RELEASE);
  if (tell) TellAll(text);
}

void ncclComm::TellAll(const std::string& word) {
  const auto length = static_cast<uint32_t>(word.size());
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes += word;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) links_.news(peer).Write(bytes.data(), bytes.size());
  }
}

// Requires: the mutex is held.
void ncclComm::HearNews(int peer) {
  if (gone_[peer]) return;
  char bytes[256];
  bool ended = false;
  const size_t more = links_.news(peer).Read(bytes, sizeof(bytes), ended);
  std::string& heard = heard_[peer];
  heard.append(bytes, more);
  uint32_t length = 0;
  while (heard.size() >= sizeof(length)) {
    std::memcpy(&length, heard.data(), sizeof(length));
    if (heard.size() < sizeof(length) + length) break;
    Heed(peer, heard.substr(sizeof(length), length));
    heard.erase(0, sizeof(length) + length);
  }
  if (!ended) return;
  gone_[peer] = true;
  // Of a GPU of the same machine NCCL hears nothing; of another machine's it may.
  if (said_bye_[peer] || Says("DTENSOR_FAKE_NCCL_DEATH", "silent")) return;
  if (error_ != ncclSuccess) return;
  error_ = ncclRemoteError;
  error_text_ = "rank " + std::to_string(peer) + " is gone";
  __atomic_store_n(&failed_, true, __ATOMIC_RELEASE);
}

void ncclComm::Heed(int peer, const std::string& word) {
  if (word == kBye) {
    said_bye_[peer] = true;
  } else if (error_ == ncclSuccess) {
    error_ = ncclInvalidUsage;
    error_text_ = word;
    __atomic_store_n(&failed_, true, __ATOMIC_RELEASE);
  }
}
