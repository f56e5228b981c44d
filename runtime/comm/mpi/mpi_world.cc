#include "dtensor/runtime/comm/mpi/mpi_world.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "dtensor/runtime/comm/mpi/mpi_session.h"
#include "dtensor/runtime/comm/mpi/mpi_transport.h"
#include "dtensor/runtime/comm/process/process_world.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/core/wire.h"
#include "dtensor/runtime/net/handshake.h"
#include "dtensor/runtime/net/socket.h"

namespace dtensor {
namespace {

MpiStop Within(double seconds, std::string what) {
  return [=, deadline = DeadlineIn(seconds)] {
    return NetClock::now() < deadline
               ? absl::OkStatus()
               : absl::DeadlineExceededError(absl::StrCat("JoinWorld: ", what, " within ", seconds,
                                                          " s; start them all, or wait longer"));
  };
}

MpiStop AllStart(double seconds) { return Within(seconds, "not all ranks have initialized MPI"); }
MpiStop AllCall(double seconds) {
  return Within(seconds, "not all ranks of the communicator have called JoinWorld");
}

// Gathers what each rank gives, by rank. Collective. Errors: those of `stop`, and on all ranks
// kInvalidArgument for more than MPI can gather.
absl::StatusOr<std::vector<std::string>> GatherTexts(MPI_Comm comm, const std::string& mine,
                                                     const MpiStop& stop) {
  // Kept for good if the wait is given up: MPI may still write there.
  struct Memory {
    std::string mine;
    int size;
    std::vector<int> sizes, begins;
    std::string all;
  };
  auto memory = std::make_unique<Memory>(Memory{mine, static_cast<int>(mine.size()), {}, {}, ""});
  Memory& m = *memory.release();
  int ranks = 0;
  MPI_Comm_size(comm, &ranks);
  m.sizes.resize(ranks);
  const auto gather_sizes = [&](MPI_Request* request) {
    return MPI_Iallgather(&m.size, 1, MPI_INT, m.sizes.data(), 1, MPI_INT, comm, request);
  };
  DT_RETURN_IF_ERROR(AwaitMpi("MPI_Iallgather", gather_sizes, stop));
  int64_t total = 0;
  for (const int size : m.sizes) {
    m.begins.push_back(static_cast<int>(total));
    total += size;
    if (size >= 0 && total <= INT_MAX) continue;
    return InvalidArgument({"JoinWorld: ranks say more of themselves than MPI gathers (2 GiB)"});
  }
  m.all.resize(static_cast<size_t>(total));
  const auto gather_texts = [&](MPI_Request* request) {
    return MPI_Iallgatherv(m.mine.data(), m.size, MPI_BYTE, m.all.data(), m.sizes.data(),
                           m.begins.data(), MPI_BYTE, comm, request);
  };
  DT_RETURN_IF_ERROR(AwaitMpi("MPI_Iallgatherv", gather_texts, stop));
  memory.reset(&m);
  std::vector<std::string> texts;
  for (int rank = 0; rank < ranks; ++rank) {
    texts.push_back(m.all.substr(m.begins[rank], m.sizes[rank]));
  }
  return texts;
}

absl::Status Unreadable(absl::string_view what) {
  return InvalidArgument(
      {"JoinWorld: ", what, " cannot be read; start the same build of the program for all ranks"});
}

// What a rank knows before it has heard from the others.
struct Card {
  std::string host, refusal;
  std::string address, job, secret;  // from its options or its environment

  std::string Encode() const {
    WireWriter out;
    for (const std::string& text : {host, refusal, address, job, secret}) out.Text(text);
    return out.bytes();
  }
  static absl::StatusOr<Card> Read(absl::string_view bytes) {
    WireReader in(bytes);
    Card card;
    for (std::string* text : {&card.host, &card.refusal, &card.address, &card.job, &card.secret}) {
      *text = in.Text();
    }
    if (!in.done()) return Unreadable("a rank's card");
    return card;
  }
};

absl::StatusOr<std::vector<Card>> GatherCards(MPI_Comm comm, const Card& mine,
                                              const MpiStop& stop) {
  DT_ASSIGN_OR_RETURN(const auto texts, GatherTexts(comm, mine.Encode(), stop));
  std::vector<Card> cards;
  for (const std::string& text : texts) {
    DT_ASSIGN_OR_RETURN(cards.emplace_back(), Card::Read(text));
  }
  return cards;
}

std::string HostName() {
  char name[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  MPI_Get_processor_name(name, &length);
  return std::string(name, length);
}

// The contradiction between options and communicator; "" if there is none.
std::string Contradiction(const JoinOptions& options, int rank, int size) {
  const auto differs = [&](const char* what, std::optional<int> said, int is) {
    return said && *said != is ? absl::StrCat("options give ", what, " ", *said,
                                              ", where the communicator says ", is, "; ")
                               : "";
  };
  std::string why =
      absl::StrCat(differs("rank", options.rank, rank), differs("size", options.size, size));
  if (options.local_rank && (*options.local_rank < 0 || *options.local_rank >= size)) {
    absl::StrAppend(&why, "options give local_rank ", *options.local_rank, ", in a world of ", size,
                    " ranks; ");
  }
  return why.empty() ? "" : absl::StrCat(why, "leave them out, or correct them");
}

// Errors: the same on all ranks, as they have the same cards.
absl::Status CheckCards(const std::vector<Card>& cards) {
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    const Card& card = cards[rank];
    if (!card.refusal.empty()) {
      return InvalidArgument({"JoinWorld: rank ", absl::StrCat(rank), ": ", card.refusal});
    }
    const auto differs = [&](const std::string& said, const std::string& rank0s) {
      return !said.empty() && said != rank0s;
    };
    const char* const what = differs(card.address, cards[0].address) ? "address"
                             : differs(card.job, cards[0].job)       ? "job"
                             : differs(card.secret, cards[0].secret) ? "secret"
                                                                     : nullptr;
    if (what == nullptr) continue;
    return InvalidArgument({"JoinWorld: rank ", absl::StrCat(rank), " gives another ", what,
                            " than rank 0; give it alike on all ranks, or on rank 0 alone"});
  }
  return absl::OkStatus();
}

// The world that all ranks are to join.
struct Offer {
  std::string refusal;
  HostPort address;
  std::string job, secret;
  std::string Encode() const {
    WireWriter out;
    for (const std::string& text : {refusal, address.host, job, secret}) out.Text(text);
    out.U32(static_cast<uint32_t>(address.port));
    return out.bytes();
  }
  static absl::StatusOr<Offer> Read(absl::string_view bytes) {
    WireReader in(bytes);
    Offer offer;
    for (std::string* text : {&offer.refusal, &offer.address.host, &offer.job, &offer.secret}) {
      *text = in.Text();
    }
    const uint32_t port = in.U32();
    if (!in.done() || port > 65535) return Unreadable("what rank 0 offers");
    offer.address.port = static_cast<int>(port);
    return offer;
  }
};

// Made by rank 0, which then listens, unless it is alone.
absl::StatusOr<Offer> MakeOffer(const std::vector<Card>& cards, Socket& listener) {
  Offer offer;
  offer.job = cards[0].job.empty() ? absl::StrCat("mpi ", absl::BytesToHexString(RandomNonce()))
                                   : cards[0].job;
  offer.secret = cards[0].secret.empty() ? RandomNonce() : cards[0].secret;
  if (!cards[0].address.empty()) {
    DT_ASSIGN_OR_RETURN(offer.address, ParseHostPort(cards[0].address));
    if (cards.size() == 1) return offer;
    DT_ASSIGN_OR_RETURN(listener, ListenAt(offer.address));
    return offer;
  }
  const bool one_host = std::all_of(cards.begin(), cards.end(),
                                    [&](const Card& card) { return card.host == cards[0].host; });
  DT_ASSIGN_OR_RETURN(listener, ListenAt({one_host ? "127.0.0.1" : "", 0}));
  offer.address.host = one_host ? "127.0.0.1" : cards[0].host;
  DT_ASSIGN_OR_RETURN(offer.address.port, PortOf(listener));
  return offer;
}

int LocalRank(const std::vector<Card>& cards, int rank) {
  return static_cast<int>(std::count_if(cards.begin(), cards.begin() + rank, [&](const Card& card) {
    return card.host == cards[rank].host;
  }));
}

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Errors: if MPI and the launcher disagree about which rank this process is.
absl::Status CheckRank(MPI_Comm comm, const LaunchedRank& me) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  if (rank == me.rank && size == me.size) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("JoinWorld: MPI has started as rank ", rank, " of ", size, ", where ",
                   me.launcher, " says ", me.rank, " of ", me.size,
                   "; start the program by the launcher of the MPI that it links (Slurm: srun "
                   "--mpi=pmix), or set DTENSOR_TRANSPORT=tcp"));
}

// Messages by MPI, over the communicator *own, which is taken when messages are needed. If that is
// MPI_COMM_NULL, a duplicate of `comm` is made then.
RankLinks LinksByMpi(MPI_Comm comm, const LaunchedRank& me, std::shared_ptr<MPI_Comm> own) {
  RankLinks links;
  links.name = "mpi";
  links.transport = [=](WorldState& world) -> absl::StatusOr<std::unique_ptr<MessageTransport>> {
    const MpiStop in_time = AllStart(me.timeout_seconds);
    const MpiStop stop = [&] {
      const absl::Status failure = world.failure();
      return failure.ok() ? in_time() : failure;
    };
    DT_RETURN_IF_ERROR(StartMpi(stop));
    MpiUse use;
    DT_RETURN_IF_ERROR(CheckRank(comm, me));
    MPI_Comm mine = std::exchange(*own, MPI_COMM_NULL);
    if (mine == MPI_COMM_NULL) {
      DT_ASSIGN_OR_RETURN(mine, DuplicateComm(comm, stop));
    }
    use.EndsClean();
    return std::make_unique<MpiTransport>(mine, world, MpiOptions{.keeps_bytes = !MpiIsOurs()});
  };
  return links;
}

// `refusal`: this rank's reason not to join, "" if there is none; all ranks learn of it.
absl::StatusOr<JoinedRank> JoinOver(MPI_Comm comm, const JoinOptions& options, std::string refusal,
                                    const MpiStop& stop) {
  const SigpipeGuard guard;
  const auto use = std::make_shared<MpiUse>();
  LaunchedRank me;
  MPI_Comm_rank(comm, &me.rank);
  MPI_Comm_size(comm, &me.size);
  me.timeout_seconds = options.timeout_seconds;
  me.report = options.report;
  me.launcher = "MPI";
  me.host = Variable("DTENSOR_HOST");
  auto gpu = ReadGpu(options);
  if (gpu.ok()) me.gpu = *std::move(gpu);
  if (refusal.empty()) refusal = std::string(gpu.status().message());
  auto transport = ReadTransport([](const char* name) { return std::getenv(name); });
  if (transport.ok()) me.transport = *std::move(transport);
  if (refusal.empty()) refusal = std::string(transport.status().message());
  if (refusal.empty()) refusal = Contradiction(options, me.rank, me.size);
  const auto said = [](const std::string& option, const char* name) {
    return option.empty() ? Variable(name) : option;
  };
  const Card mine = {HostName(), std::string(absl::StripPrefix(refusal, "JoinWorld: ")),
                     said(options.address, "DTENSOR_ADDRESS"), said(options.job, "DTENSOR_JOB"),
                     said(options.secret, "DTENSOR_SECRET")};
  // There is exactly one collective call on the caller's communicator, so a rank that tries again
  // has made as many as a rank that comes late. The duplicate is leaked if this fails, since MPI
  // may still use it.
  DT_ASSIGN_OR_RETURN(const MPI_Comm duplicate, DuplicateComm(comm, stop));
  const auto own = std::make_shared<MPI_Comm>(duplicate);
  DT_ASSIGN_OR_RETURN(const std::vector<Card> cards, GatherCards(duplicate, mine, stop));
  if (const absl::Status status = CheckCards(cards); !status.ok()) {
    MPI_Comm_free(own.get());
    return status;
  }

  Socket listener;
  Offer offer;
  if (me.rank == 0) {
    auto made = MakeOffer(cards, listener);
    if (!made.ok()) offer.refusal = std::string(made.status().message());
    if (made.ok()) offer = *std::move(made);
  }
  DT_ASSIGN_OR_RETURN(const auto offers, GatherTexts(duplicate, offer.Encode(), stop));
  DT_ASSIGN_OR_RETURN(offer, Offer::Read(offers[0]));
  if (!offer.refusal.empty()) {
    MPI_Comm_free(own.get());
    return absl::UnavailableError(absl::StrCat("JoinWorld: rank 0: ", offer.refusal));
  }
  me.local_rank = options.local_rank.value_or(LocalRank(cards, me.rank));
  me.address = offer.address;
  me.job = offer.job;
  me.secret = offer.secret;
  RankLinks links = me.transport == "tcp" ? RankLinks() : LinksByMpi(comm, me, own);
  links.listener = std::move(listener);
  links.ended = [use](const absl::Status& failure) {
    if (failure.ok()) use->EndsClean();
  };
  DT_ASSIGN_OR_RETURN(auto world, ProcessWorld::Join(me, std::move(links)));
  if (*own != MPI_COMM_NULL) MPI_Comm_free(own.get());
  return JoinedRank{std::move(world), me.local_rank};
}

absl::Status CheckComm(MPI_Comm comm) {
  if (!MpiIsRunning()) {
    return absl::FailedPreconditionError(
        "JoinWorld: a communicator is given, and MPI is not initialized, or finalized already");
  }
  int inter = 0;
  if (comm != MPI_COMM_NULL) MPI_Comm_test_inter(comm, &inter);
  if (comm != MPI_COMM_NULL && inter == 0) return absl::OkStatus();
  return InvalidArgument({"JoinWorld: the communicator is ",
                          inter != 0 ? "between two groups; merge them (MPI_Intercomm_merge)"
                                     : "MPI_COMM_NULL; only its members call JoinWorld"});
}

// Whether mpirun, or Slurm with an MPI that knows it, has started this process as that rank.
bool IsMpiLaunch(const LaunchedRank& rank) {
  if (rank.launcher == "OpenMPI") return true;
  return rank.launcher == "Slurm" && (Variable("PMIX_RANK") == absl::StrCat(rank.rank) ||
                                      Variable("PMI_RANK") == absl::StrCat(rank.rank));
}

[[maybe_unused]] const bool is_linked = [] {
  SetWorldJoiner(JoinMpiLaunch);
  return true;
}();

}  // namespace

absl::StatusOr<JoinedRank> JoinMpiWorld(MPI_Comm comm, const JoinOptions& options) {
  if (!(options.timeout_seconds > 0)) {
    return InvalidArgument({"JoinWorld: timeout_seconds must be above 0, not ",
                            absl::StrCat(options.timeout_seconds)});
  }
  DT_RETURN_IF_ERROR(CheckComm(comm));
  const MpiStop stop = AllCall(options.timeout_seconds);
  DT_RETURN_IF_ERROR(StartMpi(stop));
  return JoinOver(comm, options, "", stop);
}

absl::StatusOr<JoinedRank> JoinMpiLaunch(const JoinOptions& options) {
  DT_ASSIGN_OR_RETURN(const LaunchedRank me, ReadLaunch(options));
  if (me.transport == "tcp" || !IsMpiLaunch(me) || me.size == 1) return JoinedRank();
  if (me.address.port == 0) {
    DT_RETURN_IF_ERROR(StartMpi(AllStart(me.timeout_seconds)));
    const absl::Status same = CheckRank(MPI_COMM_WORLD, me);
    return JoinOver(MPI_COMM_WORLD, options, std::string(same.message()),
                    AllCall(me.timeout_seconds));
  }
  // All ranks first join the control plane, which can tell which ranks are missing.
  const auto none = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
  DT_ASSIGN_OR_RETURN(auto world, ProcessWorld::Join(me, LinksByMpi(MPI_COMM_WORLD, me, none)));
  return JoinedRank{std::move(world), me.local_rank};
}

}  // namespace dtensor
