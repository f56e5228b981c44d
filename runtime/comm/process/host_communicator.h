// HostCommunicator: a world of several hosts. Exchanges among ranks of this host go through shared
// memory, all others as messages.
#ifndef DTENSOR_RUNTIME_COMM_PROCESS_HOST_COMMUNICATOR_H_
#define DTENSOR_RUNTIME_COMM_PROCESS_HOST_COMMUNICATOR_H_

#include <list>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/shared/host_ranks.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Belongs to one rank's thread. The three arguments outlive it.
class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(const HostRanks& host, Communicator& shared, Communicator& messages);

  int rank() const override { return messages_.rank(); }
  int size() const override { return messages_.size(); }
  int64_t staging_bytes() const override { return messages_.staging_bytes(); }
  Delivery delivery(const Collective& collective) const override;
  absl::Status FinishDropped() override;
  absl::Status Barrier(absl::string_view what) override { return messages_.Barrier(what); }
  absl::Status Fail(const absl::Status& reason) override { return messages_.Fail(reason); }
  absl::Status failure() const override { return messages_.failure(); }

  // The world is over, and both communicators have been told: forgets what was dropped.
  void End();

 private:
  absl::Status BeginExchange(const Collective& collective,
                             absl::Span<const ExchangePart> parts) override;
  absl::Status FinishExchange(const Collective& collective) override;
  void DropExchange(const Collective& collective, std::shared_ptr<const void> owner) override;

  struct Begun {
    const Collective* collective;
    std::shared_ptr<const void> owner;  // of a dropped exchange
  };

  absl::Status FinishDropped(absl::Span<const int> group);
  // The communicator that carries out exchanges of these ranks.
  Communicator& For(absl::Span<const int> group) const;

  const HostRanks& host_;
  Communicator &shared_, &messages_;
  std::list<Begun> begun_;  // not finished, in the order in which they began
  bool ended_ = false;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_HOST_COMMUNICATOR_H_
