#include "dtensor/runtime/comm/process/process_world.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"

namespace dtensor {
namespace {

bool IsThisHostAlone(absl::string_view host) {
  const bool is_number = host.find_first_not_of("0123456789.") == host.npos;
  return host == "localhost" || host == "::1" || (is_number && absl::StartsWith(host, "127."));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessWorld>> ProcessWorld::Join(const LaunchedRank& rank) {
  if (rank.size > 1 && rank.secret.empty() && !IsThisHostAlone(rank.address.host)) {
    return InvalidArgument(
        {"JoinWorld: whoever reaches ", rank.address.ToString(),
         " could join this world, which has no secret; set DTENSOR_SECRET to the "
         "same text on all ranks (dtrun makes one), or use 127.0.0.1"});
  }
  std::unique_ptr<ProcessWorld> made(new ProcessWorld(rank));
  DT_RETURN_IF_ERROR(made->Connect());
  return made;
}

absl::Status ProcessWorld::Connect() {
  Socket listener;
  int port = 0;
  const bool here = IsThisHostAlone(rank_.address.host);
  if (size() > 1) {
    DT_ASSIGN_OR_RETURN(listener, ListenAt({here ? rank_.address.host : "", 0}));
    DT_ASSIGN_OR_RETURN(port, PortOf(listener));
  }
  DT_ASSIGN_OR_RETURN(control_, ControlPlane::Join({rank(), size(), rank_.address, rank_.job,
                                                    rank_.secret, rank_.timeout_seconds},
                                                   absl::StrCat(port)));
  std::vector<HostPort> addresses;
  for (const RankCard& card : control_->cards()) {
    HostPort address = {card.host.empty() ? rank_.address.host : card.host, 0};
    const bool is_none =
        !absl::SimpleAtoi(card.text, &address.port) || address.port < 1 || address.port > 65535;
    if (is_none && size() > 1) {
      return InvalidArgument({"JoinWorld: a rank's card is ", card.text, ", which is no port"});
    }
    addresses.push_back(std::move(address));
  }
  const auto deadline =
      NetClock::now() + std::chrono::duration_cast<NetClock::duration>(
                            std::chrono::duration<double>(std::min(rank_.timeout_seconds, 1e9)));
  const JobKey key = {rank_.job, rank_.secret, static_cast<uint32_t>(size())};
  auto transport = TcpTransport::Connect(rank(), key, std::move(listener), addresses, deadline);
  if (!transport.ok()) return control_->Fail(rank(), transport.status());
  transport_ = *std::move(transport);
  device_ = MakeCpuDevice();
  device_->set_failure_handler(
      [control = control_.get(), rank = rank()](const absl::Status& status) {
        control->Fail(rank, status).IgnoreError();
      });
  communicator_ =
      std::make_unique<MessageCommunicator>(rank(), size(), *device_, *transport_, *control_);
  return absl::OkStatus();
}

ProcessWorld::~ProcessWorld() {
  if (communicator_ != nullptr) Leave(absl::OkStatus()).IgnoreError();
}

absl::Status ProcessWorld::Leave(absl::Status status) {
  if (left_) return result_;
  left_ = true;
  if (status.ok()) status = communicator_->FinishDropped();
  transport_->Leave();
  control_->Leave(status);
  // What others wait for is on its way.
  while (transport_->is_sending() && !control_->failed()) {
    transport_->Progress(std::chrono::milliseconds(20));
  }
  device_->Synchronize().IgnoreError();
  control_->AwaitEnd();
  communicator_->End();
  const absl::Status failure = control_->failure();
  result_ = !failure.ok() ? failure
            : status.ok() ? status
                          : absl::Status(status.code(),
                                         absl::StrCat("rank ", rank(), ": ", status.message()));
  return result_;
}

}  // namespace dtensor
