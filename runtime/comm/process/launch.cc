#include "dtensor/runtime/comm/process/launch.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {
namespace {

constexpr int kMostRanks = 1 << 20;

using MaybeAddress = absl::StatusOr<std::optional<HostPort>>;  // none: it is not set anywhere

struct Launcher {
  const char *name, *rank, *size, *local_rank;
};
constexpr std::array<Launcher, 4> kLaunchers = {{
    {"dtrun", "DTENSOR_RANK", "DTENSOR_SIZE", "DTENSOR_LOCAL_RANK"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
}};

class Environment {
 public:
  explicit Environment(const std::function<const char*(const char*)>& variable)
      : variable_(variable) {}
  std::optional<std::string> Text(const char* name) const {
    const char* const value = variable_(name);
    return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
  }
  bool Has(const char* name) const { return variable_(name) != nullptr; }  // also an empty one
  // Errors: kInvalidArgument if it is no number from `least` to `most`.
  absl::StatusOr<std::optional<int>> Number(const char* name, int least, int most) const {
    const std::optional<std::string> text = Text(name);
    if (!text) return std::optional<int>();
    int value = 0;
    if (!absl::SimpleAtoi(*text, &value) || value < least || value > most) {
      return InvalidArgument({"JoinWorld: ", name, " is ", *text, ", which is no number from ",
                              absl::StrCat(least), " to ", absl::StrCat(most)});
    }
    return std::optional<int>(value);
  }

 private:
  const std::function<const char*(const char*)>& variable_;
};

// Fills in rank, size and local_rank, if this launcher sets any. Errors: if only some are set.
absl::StatusOr<bool> ReadRank(const Environment& environment, const Launcher& launcher,
                              LaunchedRank& out) {
  DT_ASSIGN_OR_RETURN(const auto rank, environment.Number(launcher.rank, 0, kMostRanks - 1));
  DT_ASSIGN_OR_RETURN(const auto size, environment.Number(launcher.size, 1, kMostRanks));
  DT_ASSIGN_OR_RETURN(const auto local, environment.Number(launcher.local_rank, 0, kMostRanks - 1));
  // sbatch sets some of Slurm's variables for its script, which is not a rank.
  const bool is_slurm = launcher.name == absl::string_view("Slurm");
  if (is_slurm && !environment.Text("SLURM_STEP_NODELIST")) return false;
  if (!rank) {
    if (!size || is_slurm) return false;
    return InvalidArgument({"JoinWorld: ", launcher.size, " is set, and ", launcher.rank,
                            " is not; set both, or none"});
  }
  if (!size) {
    return InvalidArgument({"JoinWorld: ", launcher.rank, " is set, and ", launcher.size,
                            " is not; set both, or none"});
  }
  if (*rank >= *size) {
    return InvalidArgument({"JoinWorld: ", launcher.rank, " is ", absl::StrCat(*rank), " of ",
                            launcher.size, " ", absl::StrCat(*size),
                            "; ranks count from 0 to one less than that"});
  }
  if (local && *local >= *size) {
    return InvalidArgument({"JoinWorld: ", launcher.local_rank, " is ", absl::StrCat(*local),
                            ", in a world of ", absl::StrCat(*size), " ranks"});
  }
  out.rank = *rank;
  out.size = *size;
  out.local_rank = local.value_or(*rank);
  out.launcher = launcher.name;
  return true;
}

absl::Status ReadOwn(const JoinOptions& options, LaunchedRank& out) {
  if (!options.rank != !options.size) {
    return InvalidArgument({"JoinWorld: options give a ", options.rank ? "rank" : "size",
                            " alone; give both, or none"});
  }
  if (!options.rank) return absl::OkStatus();
  if (*options.size < 1 || *options.size > kMostRanks || *options.rank < 0 ||
      *options.rank >= *options.size) {
    return InvalidArgument({"JoinWorld: there is no rank ", absl::StrCat(*options.rank), " of ",
                            absl::StrCat(*options.size)});
  }
  out.rank = *options.rank;
  out.size = *options.size;
  out.local_rank = out.rank;
  out.launcher = "options";
  return absl::OkStatus();
}

absl::Status ReadLocalRank(const JoinOptions& options, LaunchedRank& out) {
  if (!options.local_rank) return absl::OkStatus();
  if (*options.local_rank < 0 || *options.local_rank >= out.size) {
    return InvalidArgument({"JoinWorld: options give local_rank ",
                            absl::StrCat(*options.local_rank), ", in a world of ",
                            absl::StrCat(out.size), " ranks"});
  }
  out.local_rank = *options.local_rank;
  return absl::OkStatus();
}

MaybeAddress NamedAddress(absl::string_view name, absl::string_view text) {
  absl::StatusOr<HostPort> read = ParseHostPort(text);
  if (read.ok()) return *std::move(read);
  return absl::InvalidArgumentError(
      absl::StrCat("JoinWorld: ", name, ": ", read.status().message()));
}

// From 20000 to 29999. Another job may have the same port; the handshake tells them apart.
int PortOfJob(absl::string_view job) {
  uint32_t hash = 0x811c9dc5;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193;
  return 20000 + static_cast<int>(hash % 10000);
}

// For Slurm's step: a port derived from its job.
MaybeAddress SlurmAddress(const Environment& environment, const std::string& hosts) {
  DT_ASSIGN_OR_RETURN(const std::string host, FirstSlurmHost(hosts));
  return HostPort{host, PortOfJob(absl::StrCat(environment.Text("SLURM_JOB_ID").value_or(""), ".",
                                               environment.Text("SLURM_STEP_ID").value_or("")))};
}

// For ranks that are all on this host, as mpirun says: a port derived from its job.
MaybeAddress OpenMpiAddress(const Environment& environment, const LaunchedRank& rank) {
  DT_ASSIGN_OR_RETURN(const auto here,
                      environment.Number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMostRanks));
  const auto job = environment.Text("PMIX_NAMESPACE");
  if (rank.launcher != "OpenMPI" || here != rank.size || !job) return std::optional<HostPort>();
  return std::optional<HostPort>({"127.0.0.1", PortOfJob(*job)});
}

MaybeAddress ReadAddress(const JoinOptions& options, const Environment& environment,
                         const LaunchedRank& rank) {
  if (!options.address.empty()) return NamedAddress("address", options.address);
  if (const auto address = environment.Text("DTENSOR_ADDRESS")) {
    return NamedAddress("DTENSOR_ADDRESS", *address);
  }
  if (const auto host = environment.Text("MASTER_ADDR")) {
    DT_ASSIGN_OR_RETURN(const auto port, environment.Number("MASTER_PORT", 1, 65535));
    if (!port) {
      return InvalidArgument({"JoinWorld: MASTER_ADDR is set, and MASTER_PORT is not; set both"});
    }
    const bool agents = environment.Text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    return HostPort{*host, agents ? *port % 65535 + 1 : *port};
  }
  const auto hosts = environment.Text("SLURM_STEP_NODELIST");
  if (hosts && rank.launcher == "Slurm") return SlurmAddress(environment, *hosts);
  return OpenMpiAddress(environment, rank);
}

// dtrun always sets a job, though it may be empty: it may itself be one of several that mpirun or
// srun has started, in different jobs or steps.
std::string ReadJob(const JoinOptions& options, const Environment& environment) {
  if (!options.job.empty()) return options.job;
  if (environment.Has("DTENSOR_JOB")) return environment.Text("DTENSOR_JOB").value_or("");
  for (const char* name : {"TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE"}) {
    if (const auto job = environment.Text(name)) return *job;
  }
  const auto job = environment.Text("SLURM_JOB_ID");
  return job ? absl::StrCat("slurm ", *job, ".", environment.Text("SLURM_STEP_ID").value_or(""))
             : "";
}

}  // namespace

absl::StatusOr<std::optional<RankGpu>> ReadGpu(const JoinOptions& options) {
  if (options.device == Device::Kind::kCuda) {
    return RankGpu{options.gpu, options.nccl, options.nccl_is_gone, options.cuda_device};
  }
  if (options.device != Device::Kind::kCpu) {
    return InvalidArgument({"JoinWorld: the device is ", ToString(options.device),
                            "; processes compute on the cpu or on a GPU (cuda)"});
  }
  const char* const of_gpus = options.gpu               ? "gpu"
                              : options.cuda_device     ? "cuda_device"
                              : options.nccl != nullptr ? "nccl"
                                                        : nullptr;
  if (of_gpus == nullptr) return std::optional<RankGpu>();
  return InvalidArgument(
      {"JoinWorld: options give ", of_gpus, ", and the device is cpu; set it to kCuda"});
}

absl::StatusOr<LaunchedRank> ReadLaunch(const JoinOptions& options,
                                        const std::function<const char*(const char*)>& variable) {
  const Environment environment(variable);
  LaunchedRank out;
  out.launcher = "nobody";
  DT_ASSIGN_OR_RETURN(out.gpu, ReadGpu(options));
  out.timeout_seconds = options.timeout_seconds;
  out.report = options.report;
  if (!(options.timeout_seconds > 0)) {
    return InvalidArgument({"JoinWorld: timeout_seconds must be above 0, not ",
                            absl::StrCat(options.timeout_seconds)});
  }
  DT_RETURN_IF_ERROR(ReadOwn(options, out));
  for (size_t i = 0; i < kLaunchers.size() && out.launcher == "nobody"; ++i) {
    DT_RETURN_IF_ERROR(ReadRank(environment, kLaunchers[i], out).status());
  }
  DT_RETURN_IF_ERROR(ReadLocalRank(options, out));
  out.job = ReadJob(options, environment);
  out.secret =
      !options.secret.empty() ? options.secret : environment.Text("DTENSOR_SECRET").value_or("");
  out.host = environment.Text("DTENSOR_HOST").value_or("");
  DT_ASSIGN_OR_RETURN(out.transport, ReadTransport(variable));
  if (out.size > 1) {
    DT_ASSIGN_OR_RETURN(const auto address, ReadAddress(options, environment, out));
    out.address = address.value_or(HostPort());
  }
  return out;
}

absl::StatusOr<LaunchedRank> ReadLaunch(const JoinOptions& options) {
  return ReadLaunch(options, [](const char* name) { return std::getenv(name); });
}

absl::StatusOr<std::string> ReadTransport(const std::function<const char*(const char*)>& variable) {
  const std::string named = Environment(variable).Text("DTENSOR_TRANSPORT").value_or("");
  if (named.empty() || named == "tcp" || named == "mpi") return named;
  return InvalidArgument({"JoinWorld: DTENSOR_TRANSPORT is ", named,
                          ", which is no transport; it may be tcp or mpi, or unset"});
}

absl::StatusOr<std::string> FirstSlurmHost(absl::string_view list) {
  std::string host;
  absl::string_view left = list;
  while (true) {
    const size_t end = left.find_first_of(",[]");
    absl::StrAppend(&host, left.substr(0, end));
    if (end == left.npos || left[end] == ',') {
      if (host.empty()) break;
      return host;
    }
    const size_t close = left.find(']', end);
    if (left[end] == ']' || close == left.npos) break;
    const absl::string_view numbers = left.substr(end + 1, close - end - 1);
    const absl::string_view first = numbers.substr(0, numbers.find_first_of(",-"));
    if (first.empty() || numbers.find_first_not_of("0123456789,-") != numbers.npos) break;
    absl::StrAppend(&host, first);
    left.remove_prefix(close + 1);
  }
  return InvalidArgument(
      {"JoinWorld: ", list, " is no list of hosts; set DTENSOR_ADDRESS=host:port"});
}

}  // namespace dtensor
