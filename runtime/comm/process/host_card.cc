#include "dtensor/runtime/comm/process/host_card.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/core/wire.h"

namespace dtensor {

std::string Encode(const HostCard& card) {
  WireWriter out;
  out.U32(static_cast<uint32_t>(card.port));
  out.Text(card.transport);
  out.Text(card.host);
  out.U64(static_cast<uint64_t>(card.arena.process));
  out.U32(static_cast<uint32_t>(card.arena.descriptor));
  out.U64(static_cast<uint64_t>(card.arena.bytes));
  out.U64(card.arena.key);
  out.Text(card.gpu);
  return out.bytes();
}

absl::StatusOr<HostCard> ReadHostCard(absl::string_view bytes) {
  WireReader in(bytes);
  HostCard card;
  card.port = static_cast<int>(in.U32());
  card.transport = in.Text();
  card.host = in.Text();
  card.arena.process = static_cast<int64_t>(in.U64());
  card.arena.descriptor = static_cast<int>(in.U32());
  card.arena.bytes = static_cast<int64_t>(in.U64());
  card.arena.key = in.U64();
  card.gpu = in.Text();
  const bool has_port = 0 <= card.port && card.port <= 65535;
  if (!in.done() || !has_port || card.arena.bytes < 0) {
    return InvalidArgument(
        {"JoinWorld: a rank's card cannot be read; start the same build of the "
         "program for all ranks"});
  }
  return card;
}

std::string MachineId() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot;
}

std::string HostId(absl::string_view told) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self", error);
  return HostIdOf(MachineId(), self.native(), told);
}

std::string HostIdOf(absl::string_view boot, absl::string_view self, absl::string_view told) {
  if (boot.empty()) return "";  // "" would be the same for all such hosts
  if (self != absl::StrCat(getpid())) return "";
  struct stat processes;  // one namespace of process numbers
  const bool known = stat("/proc/self/ns/pid", &processes) == 0;
  return absl::StrCat(boot, " ", known ? processes.st_ino : 0, " ", geteuid(), " ", told);
}

absl::Status CheckGpus(absl::Span<const HostCard> cards) {
  std::map<absl::string_view, size_t> first;
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    const std::string& gpu = cards[rank].gpu;
    if (gpu.empty() != cards[0].gpu.empty()) {
      const auto where = [](bool none) { return none ? "on the cpu" : "on a GPU"; };
      return InvalidArgument({"JoinWorld: rank 0 computes ", where(cards[0].gpu.empty()),
                              " and rank ", absl::StrCat(rank), " ", where(gpu.empty()),
                              "; JoinOptions::device is the same for all ranks"});
    }
    const auto [known, is_new] = first.emplace(gpu, rank);
    if (gpu.empty() || is_new) continue;
    return InvalidArgument(
        {"JoinWorld: ranks ", absl::StrCat(known->second), " and ", absl::StrCat(rank),
         " compute on one GPU, ", gpu.substr(gpu.rfind(' ') + 1),
         ", which NCCL does not allow; start no more ranks on a host than it has GPUs, and give "
         "each its own by LOCAL_RANK or JoinOptions::gpu, or let ranks be threads, which share "
         "GPUs (RunRanks with RunOptions::device)"});
  }
  return absl::OkStatus();
}

std::vector<int> FirstOfHost(absl::Span<const HostCard> cards) {
  std::map<absl::string_view, int> first;
  std::vector<int> out;
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    const int own = static_cast<int>(rank);
    out.push_back(cards[rank].host.empty() ? own
                                           : first.emplace(cards[rank].host, own).first->second);
  }
  return out;
}

}  // namespace dtensor
