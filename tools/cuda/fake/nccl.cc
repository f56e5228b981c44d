// The calls of NCCL 2.28 that our own code makes, over ranks that are threads or processes of one
// host. Compiled without TSan's instrumentation (ordering.h).
//
//   DTENSOR_FAKE_NCCL_DEATH=silent    nobody hears of a rank that died, as within one machine
//   DTENSOR_FAKE_NCCL_DIES=N          the process kills itself in the midst of the N-th group that
//                                     it runs, and says when on stdout: "fault at SECONDS"
//   DTENSOR_FAKE_NCCL_ABORT=hangs     ncclCommAbort and ncclCommRevoke never return
//   DTENSOR_FAKE_NCCL_GROUP=stuck     what is launched stays in progress until it is aborted, as
//                                     where NCCL connects to a rank that died
//   DTENSOR_FAKE_NCCL_INIT=late       ncclCommInitRankConfig returns when the ranks have met: a
//                                     communicator with its error where they do not fit
//   NCCL_COMM_BLOCKING=0 or 1         as NCCL's own: before what the configuration says
//   DTENSOR_FAKE_NCCL_PATIENCE_MS=N   a call that waits so long for a peer's is an error; else none
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/tools/cuda/fake/fake.h"
#include "dtensor/tools/cuda/fake/nccl_comm.h"

namespace dtensor::fake_cuda {

size_t BytesOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

namespace {

// All communicators that there were.
class Comms {
 public:
  ncclComm_t Add(ncclComm_t comm) {
    const std::lock_guard lock(mutex_);
    open_.insert(comm);
    return comm;
  }
  ncclComm_t Require(const char* call, ncclComm_t comm) {
    const std::lock_guard lock(mutex_);
    if (open_.count(comm) == 0) Refuse(call, "there is no such communicator, or it was destroyed");
    return comm;
  }
  void End(ncclComm_t comm) {
    const std::lock_guard lock(mutex_);
    open_.erase(comm);
    ended_.insert(comm);
  }
  ~Comms() {
    if (!open_.empty() && !ForgivesLeaks())
      Refuse("at the end of the program", "not destroyed: NCCL communicator");
  }

 private:
  HostLock mutex_;
  // Never freed, nor what is in them: streams may refer to that.
  std::set<ncclComm_t>&open_ = *new std::set<ncclComm_t>, &ended_ = *new std::set<ncclComm_t>;
};

Comms& AllComms() {
  static Comms comms;
  return comms;
}

// What a thread has called since ncclGroupStart.
struct Group {
  struct Calls {
    cudaStream_t stream;
    std::vector<NcclOp> ops;
  };
  int depth = 0;
  std::vector<std::pair<ncclComm_t, Calls>> of;
  ncclResult_t error = ncclSuccess;
};
thread_local Group group;

ncclResult_t Await(ncclComm_t comm) {
  while (comm->in_progress() && comm->error() == ncclSuccess) SleepMicroseconds(50);
  return comm->error();
}

ncclResult_t EndGroup() {
  Group calls = std::exchange(group, Group());
  if (calls.error != ncclSuccess) return calls.error;
  ncclResult_t result = ncclSuccess;
  for (auto& [comm, of] : calls.of) comm->Launch(std::move(of.ops), of.stream);
  for (auto& [comm, of] : calls.of) {
    if (!comm->blocking) {
      result = ncclInProgress;
    } else if (const ncclResult_t error = Await(comm); error != ncclSuccess) {
      return error;
    }
  }
  return result;
}

// A collective's memory is two pieces, or this rank's block of the larger one is the other.
void RequireApartOrInPlace(const char* call, const NcclOp& op, size_t before, size_t read,
                           size_t written) {
  const auto from = reinterpret_cast<uintptr_t>(op.from), to = reinterpret_cast<uintptr_t>(op.to);
  const bool is_apart = from + read <= to || to + written <= from;
  const bool is_own = read < written ? from == to + before : to == from + before;
  if (!is_apart && !is_own) Refuse(call, "it writes to what it reads, and not in its own place");
}

ncclResult_t Call(const char* call, ncclComm_t comm, cudaStream_t stream, const NcclOp& op) {
  AllComms().Require(call, comm);
  RequireChosen(call, comm->gpu);
  if (comm->is_stopped() || comm->is_revoked()) Refuse(call, "the communicator was revoked");
  if (comm->is_finalized()) Refuse(call, "the communicator was finalized");
  if (comm->in_progress()) {
    Refuse(call, "the communicator is in progress: ncclCommGetAsyncError says when it is not");
  }
  ncclResult_t error = comm->error();
  const bool has_peer = op.kind == NcclOpKind::kSend || op.kind == NcclOpKind::kRecv;
  if (has_peer && (op.peer < 0 || op.peer >= comm->size)) error = ncclInvalidArgument;
  if (op.type < 0 || op.type >= ncclNumTypes) error = ncclInvalidArgument;
  if (GpuOf(stream) != comm->gpu) Refuse(call, "the stream is of another GPU");
  const size_t bytes = op.count * BytesOf(op.type);
  const size_t read = bytes * op.from_blocks(comm->size),
               written = bytes * op.to_blocks(comm->size);
  if (op.from != nullptr) RequireOnGpu(call, comm->gpu, op.from, read);
  if (op.to != nullptr) RequireOnGpu(call, comm->gpu, op.to, written);
  if (!has_peer) RequireApartOrInPlace(call, op, comm->rank * bytes, read, written);
  if (error != ncclSuccess) {
    if (group.error == ncclSuccess && group.depth > 0) group.error = error;
    return error;
  }
  const bool alone = group.depth == 0;
  for (auto& [known, calls] : group.of) {
    if (known != comm) continue;
    if (calls.stream != stream) Refuse(call, "only one stream for each communicator is faked");
    calls.ops.push_back(op);
    return ncclSuccess;
  }
  group.of.push_back({comm, {stream, {op}}});
  return alone ? EndGroup() : ncclSuccess;
}

bool Says(const char* variable, const char* value) {
  const char* const said = std::getenv(variable);
  return said != nullptr && std::strcmp(said, value) == 0;
}

// What a communicator that does not block, and is in progress, refuses.
ncclResult_t Ready(ncclComm_t comm) {
  return !comm->blocking && comm->in_progress() ? ncclInvalidArgument : ncclSuccess;
}

ncclResult_t Begin(ncclComm_t* made, int size, const ncclUniqueId& id, int rank, bool blocking) {
  if (size < 1 || rank < 0 || rank >= size) return ncclInvalidArgument;
  if (group.depth > 0) Refuse("ncclCommInitRankConfig", "within a group it is not faked");
  const std::string text(id.internal, strnlen(id.internal, sizeof(id.internal)));
  *made = AllComms().Add(new ncclComm(text, size, rank, CurrentGpu(), blocking));
  (*made)->Start();
  if (!blocking && !Says("DTENSOR_FAKE_NCCL_INIT", "late")) return ncclInProgress;
  const ncclResult_t error = Await(*made);
  if (error == ncclSuccess || !blocking) return error;
  (*made)->Stop();
  AllComms().End(*made);
  *made = nullptr;
  return error;
}

}  // namespace
}  // namespace dtensor::fake_cuda

using dtensor::fake_cuda::AllComms;
using dtensor::fake_cuda::Await;
using dtensor::fake_cuda::Call;
using dtensor::fake_cuda::EndGroup;
using dtensor::fake_cuda::group;
using dtensor::fake_cuda::NcclOpKind;
using dtensor::fake_cuda::Ready;
using dtensor::fake_cuda::Refuse;
using dtensor::fake_cuda::RequireChosen;
using dtensor::fake_cuda::Says;
using dtensor::fake_cuda::SleepMicroseconds;

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  const std::string text = dtensor::fake_cuda::NewNcclId();
  std::memcpy(id->internal, text.data(), text.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config == nullptr) return ncclInvalidArgument;
  if (config->magic != 0xcafebeef) {
    Refuse("ncclCommInitRankConfig", "the configuration is not NCCL_CONFIG_INITIALIZER's");
  }
  bool blocking = config->blocking != 0;
  if (Says("NCCL_COMM_BLOCKING", "0")) blocking = false;
  if (Says("NCCL_COMM_BLOCKING", "1")) blocking = true;
  return dtensor::fake_cuda::Begin(comm, size, id, rank, blocking);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  AllComms().Require("ncclCommGetAsyncError", comm);
  *error = comm->Poll();
  return ncclSuccess;
}

const char* ncclGetLastError(ncclComm_t comm) {
  if (comm == nullptr) return "";
  return AllComms().Require("ncclGetLastError", comm)->error_text();
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* size) {
  *size = AllComms().Require("ncclCommCount", comm)->size;
  return Ready(comm);
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = AllComms().Require("ncclCommUserRank", comm)->rank;
  return Ready(comm);
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* gpu) {
  *gpu = AllComms().Require("ncclCommCuDevice", comm)->gpu;
  return Ready(comm);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  AllComms().Require("ncclCommFinalize", comm);
  if (comm->in_progress()) Refuse("ncclCommFinalize", "the communicator is in progress");
  RequireChosen("ncclCommFinalize", comm->gpu);
  if (comm->is_stopped() || comm->is_finalized()) return ncclInvalidArgument;
  comm->Finalize();
  return comm->blocking ? Await(comm) : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  AllComms().Require("ncclCommDestroy", comm);
  RequireChosen("ncclCommDestroy", comm->gpu);
  if (comm->in_progress()) Refuse("ncclCommDestroy", "the communicator is in progress");
  const bool is_flushed = comm->is_finalized() || comm->is_stopped();
  if (!is_flushed && !comm->blocking && comm->error() == ncclSuccess) {
    Refuse("ncclCommDestroy", "a communicator that does not block is finalized first");
  }
  if (!is_flushed && comm->error() == ncclSuccess) {
    comm->Finalize();
    Await(comm);
  }
  if (!comm->is_stopped()) comm->Stop();
  AllComms().End(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  AllComms().Require("ncclCommAbort", comm);
  RequireChosen("ncclCommAbort", comm->gpu);
  if (!comm->is_stopped()) comm->Stop();
  AllComms().End(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  if (flags != NCCL_REVOKE_DEFAULT) return ncclInvalidArgument;
  AllComms().Require("ncclCommRevoke", comm);
  RequireChosen("ncclCommRevoke", comm->gpu);
  if (!comm->blocking && comm->has_group()) {
    Refuse("ncclCommRevoke",
           "a group is in progress, or failed, or nobody asked for its end: NCCL "
           "2.28 frees it, and frees it again when it is asked");
  }
  if (comm->is_stopped() || !comm->Revoke()) return ncclInvalidArgument;
  if (!comm->blocking) return ncclInProgress;
  while (comm->in_progress()) SleepMicroseconds(50);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) Refuse("ncclGroupEnd", "no group was started");
  return --group.depth > 0 ? ncclSuccess : EndGroup();
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return Call("ncclSend", comm, stream, {NcclOpKind::kSend, from, nullptr, count, type, peer});
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Call("ncclRecv", comm, stream, {NcclOpKind::kRecv, nullptr, to, count, type, peer});
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return Call("ncclAllGather", comm, stream, {NcclOpKind::kAllGather, from, to, count, type, -1});
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const bool is_float =
      type == ncclFloat16 || type == ncclBfloat16 || type == ncclFloat32 || type == ncclFloat64;
  if (op != ncclSum || !is_float) Refuse("ncclReduceScatter", "only sums of floats are faked");
  return Call("ncclReduceScatter", comm, stream,
              {NcclOpKind::kReduceScatter, from, to, count, type, -1});
}

}  // extern "C"
