// Finds out which rank this process is, from its launcher or from its caller.
#ifndef DTENSOR_RUNTIME_COMM_PROCESS_LAUNCH_H_
#define DTENSOR_RUNTIME_COMM_PROCESS_LAUNCH_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/comm/process/join_options.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/cuda/rank_device.h"
#include "dtensor/runtime/net/socket.h"

namespace DTENSOR_EXPORT dtensor {

// For a rank that computes on a GPU and exchanges by NCCL.
struct RankGpu {
  // Index among the GPUs that CUDA shows this process. If not set: the only one, or else local_rank
  // modulo their number.
  std::optional<int> ordinal = {};
  ncclComm* comm = nullptr;  // the program's, of all ranks (nccl_carrier.h); null: it makes one
  std::shared_ptr<std::atomic<bool>> comm_is_gone = nullptr;  // set before `comm` is aborted
  CudaDeviceMaker make_device = nullptr;                      // null: MakeCudaDevice(ordinal)
};

struct LaunchedRank {
  int rank = 0, size = 1;
  int local_rank = 0;  // among the ranks of this host
  HostPort address;    // where rank 0 listens; empty in a world of one, or if it is unknown
  std::string job = {}, secret = {};
  double timeout_seconds = 60;
  std::string host;  // a name that tells this host from others, besides what the system says
  // "tcp" or "mpi": all data goes in messages, by this transport. Empty: ranks of a host share
  // memory; other messages go by MPI if the program joins by it, else by TCP.
  std::string transport;
  std::optional<RankGpu> gpu;                       // else it computes on the cpu
  std::function<void(const absl::Status&)> report;  // as ControlPlaneOptions
  // Where this came from: "options", "dtrun", "torchrun", "OpenMPI", "Slurm", "nobody".
  std::string launcher;
};

// Returns what the options say about this rank's GPU; none if it computes on the cpu. Errors:
// kInvalidArgument for a device that is neither kCpu nor kCuda, and for gpu, cuda_device or nccl if
// it is kCpu.
absl::StatusOr<std::optional<RankGpu>> ReadGpu(const JoinOptions& options);

// The first of these that says anything about ranks is used: the options; dtrun (DTENSOR_RANK,
// DTENSOR_SIZE, DTENSOR_LOCAL_RANK); torchrun (RANK, WORLD_SIZE, LOCAL_RANK); OpenMPI; Slurm; else
// it is a world of one. The address is the options', else DTENSOR_ADDRESS, else MASTER_ADDR and
// MASTER_PORT (if torchrun's agent itself uses that port: the next one), else the first host of
// Slurm's step with a port derived from its job, or, if mpirun has started all ranks on this host,
// a port derived from its job; else it stays empty. The job is the options', else DTENSOR_JOB (also
// if that is set and empty, as dtrun sets it for several machines), TORCHELASTIC_RUN_ID,
// PMIX_NAMESPACE, or Slurm's job and step. The secret is the options', else DTENSOR_SECRET.
//
// DTENSOR_HOST, if it is set, separates ranks of one host: those with different values exchange as
// if they were on different hosts. With DTENSOR_TRANSPORT=tcp (or mpi) no memory is shared at all.
//
// `variable` is getenv, or a test's replacement; it returns null for a variable that is not set.
// Errors: kInvalidArgument, naming the variable: a rank without a size, or the reverse; values that
// are no numbers, or contradict each other; a time-out that is not above 0; another
// DTENSOR_TRANSPORT; as ReadGpu.
absl::StatusOr<LaunchedRank> ReadLaunch(const JoinOptions& options,
                                        const std::function<const char*(const char*)>& variable);
absl::StatusOr<LaunchedRank> ReadLaunch(const JoinOptions& options = {});  // by getenv

// Returns LaunchedRank::transport. Errors: kInvalidArgument for another DTENSOR_TRANSPORT.
absl::StatusOr<std::string> ReadTransport(const std::function<const char*(const char*)>& variable);

// Returns the first host of a Slurm list: "node[03-05,9],other" gives "node03", "rack[0-1]n[5-9]"
// gives "rack0n5". Errors: kInvalidArgument.
absl::StatusOr<std::string> FirstSlurmHost(absl::string_view list);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_LAUNCH_H_
