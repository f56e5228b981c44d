// Which rank this process is: as whoever started it says.
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
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/cuda/rank_device.h"
#include "dtensor/runtime/net/socket.h"

struct ncclComm;  // ncclComm_t is a pointer to it

namespace DTENSOR_EXPORT dtensor {

// A rank that computes on a GPU, whose exchanges go by NCCL.
struct RankGpu {
  // Among those that CUDA shows this process. If it is not said: the only one that there is, or the
  // local_rank-th, and round.
  std::optional<int> ordinal = {};
  ncclComm* comm = nullptr;  // the program's, of all ranks (nccl_carrier.h); null: one of its own
  std::shared_ptr<std::atomic<bool>> comm_is_gone = nullptr;  // set before that is aborted
  CudaDeviceMaker make_device = nullptr;                      // null: MakeCudaDevice(ordinal)
};

struct LaunchedRank {
  int rank = 0, size = 1;
  int local_rank = 0;  // among those of this host
  HostPort address;    // where rank 0 listens; nowhere in a world of one
  std::string job = {}, secret = {};
  double timeout_seconds = 60;
  std::string host;  // a name to tell this host from others by, beside what the system says
  // "tcp" or "mpi": messages alone, which go by that. Empty: ranks of a host share memory, and
  // others' messages go by MPI where the program joins by it, else by TCP.
  std::string transport;
  std::optional<RankGpu> gpu;                       // else it computes on the cpu
  std::function<void(const absl::Status&)> report;  // as ControlPlaneOptions
  // Who said so: "options", "dtrun", "torchrun", "OpenMPI", "Slurm", "nobody".
  std::string launcher;
};

// What a caller says itself. It wins over what the environment says.
struct LaunchOptions {
  std::optional<int> rank = {}, size = {}, local_rank = {};
  std::string address = {};  // "host:port" of rank 0
  std::string job = {}, secret = {};
  double timeout_seconds = 60;
  std::optional<RankGpu> gpu = {};
  std::function<void(const absl::Status&)> report = nullptr;
  // Whoever joins has another way to find rank 0: where nothing says it, LaunchedRank::address is
  // nowhere.
  bool may_lack_address = false;
};

// The first of these that says anything about ranks: the options; dtrun (DTENSOR_RANK,
// DTENSOR_SIZE, DTENSOR_LOCAL_RANK); torchrun (RANK, WORLD_SIZE, LOCAL_RANK); OpenMPI; Slurm; else
// a world of one. The address is the options', DTENSOR_ADDRESS, MASTER_ADDR and MASTER_PORT (where
// torchrun's agent has that port itself: the next), the first host of Slurm's step and a port made
// of its job, or, where mpirun has started all ranks on this host, a port made of its job. The job
// is the options', DTENSOR_JOB (also where that is set and empty, as dtrun does for several
// machines), TORCHELASTIC_RUN_ID, PMIX_NAMESPACE, or Slurm's job and step; the secret the options'
// or DTENSOR_SECRET's.
//
// DTENSOR_HOST, if it is set, tells ranks apart that are on one host: they exchange as if they were
// on several. DTENSOR_TRANSPORT=tcp (or mpi) shares no memory at all.
//
// `variable` is getenv, or a test's: null where there is none. Errors: kInvalidArgument, naming the
// variable: a rank without a size, or the reverse; numbers that are none, or contradict each other;
// no address for more than one rank, with the remedy; a time-out that is not above 0; another
// DTENSOR_TRANSPORT.
absl::StatusOr<LaunchedRank> ReadLaunch(const LaunchOptions& options,
                                        const std::function<const char*(const char*)>& variable);
absl::StatusOr<LaunchedRank> ReadLaunch(const LaunchOptions& options);  // by getenv

// LaunchedRank::transport. Errors: kInvalidArgument for another DTENSOR_TRANSPORT.
absl::StatusOr<std::string> ReadTransport(const std::function<const char*(const char*)>& variable);

// The first host of a Slurm list: "node[03-05,9],other" gives "node03",
// "rack[0-1]n[5-9]" gives "rack0n5". Errors: kInvalidArgument.
absl::StatusOr<std::string> FirstSlurmHost(absl::string_view list);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_LAUNCH_H_
