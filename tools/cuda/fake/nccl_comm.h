// A communicator of the fake NCCL. It checks that its ranks do what NCCL requires: each pair's
// sends and receives come in one order, with one count and one type; collectives are called by all
// ranks. A violation is an error of the communicator, on every rank.
#ifndef DTENSOR_TOOLS_CUDA_FAKE_NCCL_COMM_H_
#define DTENSOR_TOOLS_CUDA_FAKE_NCCL_COMM_H_

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/tools/cuda/fake/nccl_links.h"
#include "dtensor/tools/cuda/fake/ordering.h"

namespace dtensor::fake_cuda {

// Of threads of the host, whose order TSan is told.
class HostLock {
 public:
  void lock() {
    spin_.lock();
    Acquire(this);
  }
  void unlock() {
    Release(this);
    spin_.unlock();
  }

 private:
  SpinLock spin_;
};

enum class NcclOpKind : uint32_t { kSend = 1, kRecv, kAllGather, kReduceScatter };
struct NcclOp {
  NcclOpKind kind;
  const void* from;
  void* to;
  size_t count;  // of elements; for a collective, those of one rank
  ncclDataType_t type;
  int peer;  // unused for a collective
  bool is_collective() const { return peer < 0; }
  size_t from_blocks(int ranks) const { return kind == NcclOpKind::kReduceScatter ? ranks : 1; }
  size_t to_blocks(int ranks) const { return kind == NcclOpKind::kAllGather ? ranks : 1; }
};
size_t BytesOf(ncclDataType_t type);

}  // namespace dtensor::fake_cuda

// For one rank. Kept until the program ends, so that its address is not reused.
struct ncclComm {
 public:
  using Op = dtensor::fake_cuda::NcclOp;
  ncclComm(const std::string& id, int size, int rank, int gpu, bool blocking);

  const int size, rank, gpu;
  const bool blocking;

  // Begins to connect to the other ranks, on a thread of its own; in_progress() until that is done.
  void Start();
  // The calls of one group. They are launched on `stream`; in_progress() until then.
  void Launch(std::vector<Op> ops, cudaStream_t stream);
  // Begins to wait for what was launched, and for the other ranks to do the same.
  void Finalize();
  // Abandons what was launched, and ends the thread.
  void Stop();
  // Begins a revocation; in_progress() until it is done. False: nothing is left to revoke.
  bool Revoke();

  bool in_progress();
  // The result of ncclCommGetAsyncError, which is also where NCCL frees a group that has ended.
  ncclResult_t Poll();
  // Whether there is a group that it has not freed.
  bool has_group();
  bool is_revoked();
  bool is_finalized();
  bool is_stopped() { return __atomic_load_n(&stopped_, __ATOMIC_ACQUIRE); }
  ncclResult_t error();
  const char* error_text();

 private:
  struct Transfer;
  struct Batch;
  struct News;

  void Work();  // the thread
  bool Step();
  void HearNews(int peer);
  void Heed(int peer, const std::string& word);
  void TellAll(const std::string& word);
  void Fail(ncclResult_t error, const std::string& text, bool tell);
  void Run(const std::vector<Op>& ops);  // on the stream
  std::string MoveOwn(const std::vector<Op>& ops);
  void Add(const Op& op, const std::vector<char>& terms);
  bool Send(int peer, Batch& batch);
  bool Receive(int peer, Batch& batch);
  bool HeaderFits(int peer, const Transfer& transfer);
  void LosePatience(const Batch& batch);
  bool is_failed() { return __atomic_load_n(&failed_, __ATOMIC_ACQUIRE); }

  const std::string id_;
  dtensor::fake_cuda::HostLock mutex_;
  dtensor::fake_cuda::NcclLinks links_;
  // Under the mutex.
  std::deque<std::function<void()>> tasks_;
  std::vector<std::string> heard_;  // [peer], of a word that has not all come
  std::vector<bool> said_bye_, gone_;
  bool in_progress_ = false, met_ = false, finalizing_ = false, finalized_ = false;
  bool revoked_ = false, has_group_ = false;
  ncclResult_t error_ = ncclSuccess;
  std::string error_text_;
  cudaStream_t stream_ = nullptr;
  // Atomic.
  bool failed_ = false, stopped_ = false, working_ = false;
  int launched_ = 0;  // launched and not done
  int running_ = 0;   // now, on the stream
};

#endif  // DTENSOR_TOOLS_CUDA_FAKE_NCCL_COMM_H_
