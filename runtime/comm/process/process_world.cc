#include "dtensor/runtime/comm/process/process_world.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/kept_worlds.h"
#include "dtensor/runtime/comm/nccl/nccl_carrier.h"
#include "dtensor/runtime/comm/process/tcp_transport.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/cuda/gpus.h"
#include "dtensor/runtime/device/cuda/rank_device.h"

namespace dtensor {
namespace {

KeptWorlds<ProcessWorld>& Kept() {
  static auto& kept = *new KeptWorlds<ProcessWorld>;
  return kept;
}

absl::Status NoAddress(const LaunchedRank& rank) {
  return InvalidArgument({"JoinWorld: rank ", absl::StrCat(rank.rank), " of ",
                          absl::StrCat(rank.size), " (", rank.launcher,
                          ") does not know where rank 0 is; set DTENSOR_ADDRESS=host:port for all "
                          "ranks, with a free port of rank 0's host (under mpirun: mpirun -x "
                          "DTENSOR_ADDRESS ..., or link //dtensor/mpi)"});
}

}  // namespace

void LetGo(std::unique_ptr<ProcessWorld> world) { Kept().LetGo(std::move(world)); }

absl::StatusOr<std::unique_ptr<ProcessWorld>> ProcessWorld::Join(const LaunchedRank& rank,
                                                                 RankLinks links) {
  Kept().LetGo(nullptr);  // each world takes a range of addresses, and these are few
  if (rank.size > 1 && rank.address.port == 0) return NoAddress(rank);
  if (rank.size > 1 && rank.secret.empty() && !IsLoopback(rank.address.host)) {
    return InvalidArgument(
        {"JoinWorld: whoever reaches ", rank.address.ToString(),
         " could join this world, which has no secret; set DTENSOR_SECRET to the "
         "same text on all ranks (dtrun makes one), or use 127.0.0.1"});
  }
  if (rank.size > 1 && rank.transport == "mpi" && links.transport == nullptr) {
    return InvalidArgument(
        {"JoinWorld: DTENSOR_TRANSPORT is mpi, and this program does not join by MPI; make it "
         "depend on //dtensor/mpi, and start it by mpirun or srun"});
  }
  std::unique_ptr<ProcessWorld> made(new ProcessWorld(rank, std::move(links)));
  const absl::Status status = NoThrow([&] {
    const absl::Status met = made->Meet();
    return met.ok() ? made->Connect() : met;
  });
  if (!status.ok()) {
    return made->control_ == nullptr ? status : made->control_->Fail(rank.rank, status);
  }
  made->is_connected_ = true;
  return made;
}

// All ranks' cards.
absl::Status ProcessWorld::Meet() {
  HostCard own = {.transport = links_.name};
  if (size() > 1 && links_.transport == nullptr) {
    const bool here = IsLoopback(rank_.address.host);
    DT_ASSIGN_OR_RETURN(listener_, ListenAt({here ? rank_.address.host : "", 0}));
    DT_ASSIGN_OR_RETURN(own.port, PortOf(listener_));
  }
  if (rank_.gpu) {
    gpu_ = ChooseGpu();  // Connect reports an error, so that all ranks get it
    const auto name = gpu_.ok() ? GpuName(*gpu_) : gpu_.status();
    if (!name.ok()) gpu_ = name.status();
    own.gpu = absl::StrCat(MachineId(), " ", name.ok() ? *name : absl::StrCat("rank ", rank()));
  } else if (size() > 1 && rank_.transport.empty()) {
    arena_ = MakeRankArena(size());  // Connect reports an error, so that all ranks get it
    // Without an arena, it shares memory with nobody.
    if (arena_.ok()) {
      own.host = HostId(rank_.host);
      own.arena = (*arena_)->name();
    }
  }
  DT_ASSIGN_OR_RETURN(control_,
                      ControlPlane::Join({rank(), size(), rank_.address, rank_.job, rank_.secret,
                                          rank_.timeout_seconds, rank_.report},
                                         Encode(own), std::move(links_.listener)));
  for (const RankCard& card : control_->cards()) {
    DT_ASSIGN_OR_RETURN(cards_.emplace_back(), ReadHostCard(card.text));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> ProcessWorld::ChooseGpu() const {
  DT_ASSIGN_OR_RETURN(const int count, CountGpus());
  return rank_.gpu->ordinal.value_or(count == 1 ? 0 : rank_.local_rank % count);
}

absl::Status ProcessWorld::MakeDevice(std::shared_ptr<SharedArena> arena) {
  DT_RETURN_IF_ERROR(gpu_.status());
  DT_RETURN_IF_ERROR(CheckGpus(cards_));
  if (*gpu_ >= 0) {
    DT_ASSIGN_OR_RETURN(device_, MakeRankDevice(rank_.gpu->make_device, rank(), *gpu_));
  } else {
    device_ = MakeCpuDevice(std::move(arena));
  }
  device_->set_failure_handler(
      [control = control_.get(), rank = rank()](const absl::Status& status) {
        control->Fail(rank, status).IgnoreError();
      });
  return absl::OkStatus();
}

absl::Status ProcessWorld::Connect() {
  DT_ASSIGN_OR_RETURN(std::shared_ptr<SharedArena> arena, std::move(arena_));
  const std::vector<int> first = FirstOfHost(cards_);
  const bool is_alone = std::count(first.begin(), first.end(), first[rank()]) == 1;
  if (is_alone) arena = nullptr;
  DT_RETURN_IF_ERROR(MakeDevice(arena));
  if (!is_alone) {
    const auto meanwhile = [this] { return messages_ != nullptr && messages_->Progress(); };
    auto memory =
        HostMemory::Open(rank(), cards_, std::move(arena), *device_, *control_, meanwhile);
    // If a rank's process has no such arena any more, it is gone, and the world fails.
    if (absl::IsNotFound(memory.status())) DT_RETURN_IF_ERROR(AwaitFailure(*control_));
    DT_ASSIGN_OR_RETURN(memory_, std::move(memory));
  }
  const bool are_all_here = std::count(first.begin(), first.end(), first[0]) == size();
  if (!are_all_here || is_alone) DT_RETURN_IF_ERROR(ConnectMessages());
  if (memory_ != nullptr && messages_ != nullptr) {
    both_ =
        std::make_unique<HostCommunicator>(memory_->ranks(), memory_->communicator(), *messages_);
  }
  listener_ = Socket();
  links_.transport = nullptr;
  return absl::OkStatus();
}

absl::Status ProcessWorld::ConnectMessages() {
  DT_ASSIGN_OR_RETURN(transport_, ConnectHosts());
  if (rank_.gpu) {
    DT_ASSIGN_OR_RETURN(carrier_, MakeNcclCarrier(rank(), size(), *device_, *control_,
                                                  {.comm = rank_.gpu->comm,
                                                   .comm_is_gone = rank_.gpu->comm_is_gone}));
  }
  messages_ = std::make_unique<MessageCommunicator>(
      rank(), size(), *device_, *transport_, *control_, MessageOptions{.carrier = carrier_.get()});
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MessageTransport>> ProcessWorld::ConnectHosts() {
  for (int peer = 0; peer < size(); ++peer) {
    if (cards_[peer].transport == links_.name) continue;
    const auto text = [](absl::string_view name) { return name.empty() ? "TCP" : name; };
    return InvalidArgument({"JoinWorld: messages of rank ", absl::StrCat(peer), " go by ",
                            text(cards_[peer].transport), ", those of this one by ",
                            text(links_.name),
                            "; start the same program for all ranks, with the same "
                            "DTENSOR_TRANSPORT"});
  }
  return links_.transport == nullptr ? ConnectByTcp() : links_.transport(*control_);
}

absl::StatusOr<std::unique_ptr<MessageTransport>> ProcessWorld::ConnectByTcp() {
  std::vector<HostPort> addresses;
  for (int peer = 0; peer < size(); ++peer) {
    const std::string& host = control_->cards()[peer].host;
    addresses.push_back({host.empty() ? rank_.address.host : host, cards_[peer].port});
  }
  const JobKey key = {rank_.job, rank_.secret, static_cast<uint32_t>(size())};
  return TcpTransport::Connect(
      rank(), key, std::move(listener_), addresses, DeadlineIn(control_->timeout_seconds()),
      [control = control_.get()] { return control->failure(); },
      [&](const absl::Status& status) { control_->Fail(rank(), status).IgnoreError(); });
}

Communicator& ProcessWorld::communicator() {
  if (both_ != nullptr) return *both_;
  if (messages_ != nullptr) return *messages_;
  return memory_->communicator();
}

ProcessWorld::~ProcessWorld() {
  if (!is_connected_) return;
  Leave(absl::OkStatus()).IgnoreError();
}

absl::Status ProcessWorld::Leave(absl::Status status) {
  if (left_) return result_;
  left_ = true;
  if (status.ok()) status = communicator().FinishDropped();
  if (transport_ != nullptr) transport_->Leave();
  control_->Leave(status);
  // Work until what others wait for has been sent.
  const auto send = [&] {
    const bool sends = transport_ != nullptr && transport_->is_sending() && !control_->failed();
    if (sends) transport_->Progress(std::chrono::milliseconds(20));
    if (!sends) device_->Synchronize().IgnoreError();
    return sends;
  };
  control_->AwaitEnd(send);
  control_->End();
  if (both_ != nullptr) both_->End();  // passes what it kept to the two
  if (memory_ != nullptr) memory_->End();
  if (messages_ != nullptr) messages_->End();
  const absl::Status failure = control_->failure();
  // Not in the destructor, which never runs if a tensor outlives the world.
  transport_ = nullptr;
  if (links_.ended) std::exchange(links_.ended, nullptr)(failure);
  // If the program returned this failure, its version says more.
  const bool is_failure = absl::StartsWith(status.message(), failure.message());
  result_ = !failure.ok() ? (!status.ok() && is_failure ? status : failure)
            : status.ok() ? status
                          : absl::Status(status.code(),
                                         absl::StrCat("rank ", rank(), ": ", status.message()));
  return result_;
}

}  // namespace dtensor
