// MachineRates: how fast a rank computes and how fast ranks communicate, as plain numbers.
//
// Their text form and what each name means: dtensor/redistribution/cost_model.h.
#ifndef DTENSOR_RUNTIME_CORE_MACHINE_RATES_H_
#define DTENSOR_RUNTIME_CORE_MACHINE_RATES_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/work.h"

namespace DTENSOR_EXPORT dtensor {

struct LinkSpeed {
  double latency_us = 0.3;   // of one message, however small
  double gb_per_second = 8;  // 1e9 bytes; for all that one rank receives over such links
  friend bool operator==(const LinkSpeed&, const LinkSpeed&) = default;
};

// The defaults are for ranks that are threads of one process, on a desktop CPU.
struct MachineRates {
  std::map<std::string, LinkSpeed, std::less<>> links;  // by axis
  LinkSpeed every_other_link;
  double copy_gb_per_second = 16;       // of copies between ranks' memory: read and written
  double reduce_gb_per_second = 12;     // of terms read
  double multiply_gf_per_second = 100;  // 1e9 operations; of attention's products
  // 0 in the following means not given.
  PerDType gemm_gf_per_second = {};  // of matrix products; if 0, as multiply
  double memory_gb_per_second = 0;   // of all other kernels, read and written; if 0, as copy
  double call_us = 0;                // that each kernel takes in addition to its work

  double GemmFlopsPerSecond(DType dtype) const;
  double MemoryBytesPerSecond() const;

  const LinkSpeed& LinkOf(absl::string_view axis) const;
  // For an exchange with that label (Collective::axes): "dp,tp" uses the slowest of its axes, and
  // an exchange between meshes, "dp->pp", the link of every other axis.
  const LinkSpeed& LinkOfLabel(absl::string_view axes) const;
  friend bool operator==(const MachineRates&, const MachineRates&) = default;
};

// The time of one round of communication, for one receiving rank.
struct RoundSeconds {
  double latency = 0;  // of its slowest link
  double work = 0;     // the transfers over all links, and work in its own memory
  double total() const { return latency + work; }
};

// For what rank `rank` receives. `link_to(peer)` returns the link by which `peer` is reached.
template <typename LinkTo>
RoundSeconds SecondsOfRound(const MachineRates& rates, absl::Span<const ReceiveBox> boxes,
                            int64_t element_size, int rank, LinkTo&& link_to) {
  RoundSeconds seconds;
  for (const ReceiveBox& box : boxes) {
    const double bytes = static_cast<double>(box.elements() * element_size);
    for (int peer : box.peers) {
      if (peer == rank) continue;
      const LinkSpeed& link = link_to(peer);
      seconds.work += bytes / (link.gb_per_second * 1e9);
      seconds.latency = std::max(seconds.latency, link.latency_us * 1e-6);
    }
    if (box.peers.size() > 1) {
      seconds.work +=
          bytes * static_cast<double>(box.peers.size()) / (rates.reduce_gb_per_second * 1e9);
    } else if (box.peers[0] == rank) {
      seconds.work += 2 * bytes / (rates.copy_gb_per_second * 1e9);
    }
  }
  return seconds;
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_MACHINE_RATES_H_
