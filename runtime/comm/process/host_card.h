// HostCard: what a rank tells the others when it comes (ControlPlane::Join's card): where it
// listens, and how ranks of its host find its memory.
#ifndef DTENSOR_RUNTIME_COMM_PROCESS_HOST_CARD_H_
#define DTENSOR_RUNTIME_COMM_PROCESS_HOST_CARD_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/cpu/shared_arena.h"

namespace DTENSOR_EXPORT dtensor {

struct HostCard {
  int port = 0;           // 0: it listens nowhere
  std::string transport;  // of its messages, by RankLinks' name; empty: TCP
  std::string host;       // ranks that say the same share memory; empty: this one shares none
  ArenaName arena;
  std::string gpu;  // that it computes on: its machine and its name there; empty: none
};
std::string Encode(const HostCard& card);
// Errors: kInvalidArgument for bytes that are none.
absl::StatusOr<HostCard> ReadHostCard(absl::string_view bytes);

// Names this process's host, user and container (where it has others' process numbers): processes
// for which that is the same can read each other's memory. `told`, if not empty, is a part of it:
// so that processes of one host can be made to believe that they are on several. Empty where the
// system does not say which boot this is, or where /proc has other process numbers than this
// process knows (`self`: what it calls this one), as in a container that has its own numbers and
// another's /proc: then nobody's memory is read.
std::string HostId(absl::string_view told);
std::string HostIdOf(absl::string_view boot, absl::string_view self, absl::string_view told);

// Names this process's machine as long as it runs, whatever container it is in; "" where the system
// does not say.
std::string MachineId();

// What is wrong with the ranks' GPUs, in the same words on all ranks: some have one and others do
// not, or two have the same, which NCCL does not allow.
absl::Status CheckGpus(absl::Span<const HostCard> cards);

// For each rank the lowest rank of its host, by all ranks' cards.
std::vector<int> FirstOfHost(absl::Span<const HostCard> cards);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_HOST_CARD_H_
