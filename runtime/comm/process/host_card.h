// HostCard: what a rank tells the others when it joins (the card of ControlPlane::Join): where it
// listens, and how other ranks of its host find its memory.
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
  std::string transport;  // for messages: RankLinks::name; empty: TCP
  std::string host;       // ranks with the same text share memory; empty: this one shares none
  ArenaName arena;
  std::string gpu;  // the GPU it computes on: machine, and name there; empty: none
};
std::string Encode(const HostCard& card);
// Errors: kInvalidArgument if the bytes are no card.
absl::StatusOr<HostCard> ReadHostCard(absl::string_view bytes);

// Names this process's host, user and container (if that has process numbers of its own): processes
// with the same name can read each other's memory. `told`, if not empty, becomes part of it, so
// that processes of one host can be made to believe that they are on several. Returns "" if the
// system does not say which boot this is, or if /proc shows other process numbers than this process
// has (`self` is its number there), as in a container that has its own numbers and another's /proc.
// No memory is shared then.
std::string HostId(absl::string_view told);
std::string HostIdOf(absl::string_view boot, absl::string_view self, absl::string_view told);

// Names this process's machine for as long as it runs, whatever container the process is in; "" if
// the system does not say.
std::string MachineId();

// Returns what is wrong with the ranks' GPUs, in the same words on all ranks: some ranks have one
// and others do not, or two ranks have the same one, which NCCL does not allow.
absl::Status CheckGpus(absl::Span<const HostCard> cards);

// For each rank, the lowest rank on its host, computed from all ranks' cards.
std::vector<int> FirstOfHost(absl::Span<const HostCard> cards);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_HOST_CARD_H_
