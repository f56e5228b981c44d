#include "dtensor/bench/beside_processes.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "benchmark/benchmark.h"
#include "dtensor/bench/rank_time.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/gather_values.h"
#include "dtensor/tools/program/speaker.h"

namespace dtensor::bench {

// --- Threads.

ThreadsBeside::ThreadsBeside(Context& world, MakeRankWork make)
    : processes_(world), make_(std::move(make)) {
  if (world.rank() != 0) return;
  threads_ = std::thread([this, ranks = world.world_size()] {
    UseAllCores();  // of which RunRanks takes its own
    const absl::Status status =
        RunRanks(ranks, [this](Context& context) { return RunRank(context); },
                 {.pin_threads = CanPin(ranks)});
    const std::lock_guard lock(mutex_);
    status_.Update(status);
    over_ = true;
    done_.notify_all();
  });
}

ThreadsBeside::~ThreadsBeside() {
  if (!threads_.joinable()) return;
  Do(Ask::kEnd).status().IgnoreError();
  threads_.join();
}

namespace {

// Seconds, where they are asked for.
absl::StatusOr<double> SecondsOf(const absl::Status& status) {
  return status.ok() ? absl::StatusOr<double>(0.0) : status;
}

}  // namespace

absl::StatusOr<double> ThreadsBeside::Answer(RankWork& work, Ask ask) {
  switch (ask) {
    case Ask::kPrepare:
      return SecondsOf(work.Prepare());
    case Ask::kCheck:
      return SecondsOf(work.CheckResults());
    case Ask::kTime:
      return work.TimeRound();
    case Ask::kEnd:
      break;
  }
  return 0.0;
}

// A rank whose work fails tells the others, which may wait for it there, and waits for kEnd.
absl::Status ThreadsBeside::RunRank(Context& context) {
  const std::unique_ptr<RankWork> work = make_(context);
  for (int seen = 0;;) {
    Ask ask;
    {
      std::unique_lock lock(mutex_);
      asked_.wait(lock, [&] { return number_ != seen; });
      seen = number_;
      ask = ask_;
    }
    absl::StatusOr<double> seconds = Answer(*work, ask);
    if (!seconds.ok()) seconds = context.communicator().Fail(seconds.status());
    const std::lock_guard lock(mutex_);
    if (answer_.ok()) answer_ = seconds;
    if (--missing_ == 0) done_.notify_all();
    if (ask == Ask::kEnd) return absl::OkStatus();
  }
}

absl::StatusOr<double> ThreadsBeside::Do(Ask ask) {
  if (!threads_.joinable()) return 0.0;
  std::unique_lock lock(mutex_);
  ask_ = ask;
  ++number_;
  missing_ = processes_.world_size();
  answer_ = 0.0;
  asked_.notify_all();
  done_.wait(lock, [&] { return missing_ == 0 || over_; });
  DT_RETURN_IF_ERROR(status_);
  return answer_;
}

absl::Status ThreadsBeside::Prepare() { return AgreeOn(processes_, Do(Ask::kPrepare).status()); }

absl::StatusOr<double> ThreadsBeside::TimeRound() {
  using Clock = std::chrono::steady_clock;
  DT_ASSIGN_OR_RETURN(const std::vector<double> took, GatherValues(processes_, took_));
  if (!threads_.joinable()) {
    std::this_thread::sleep_for(std::chrono::duration<double>(took[0]));
    return 0.0;
  }
  const Clock::time_point start = Clock::now();
  DT_ASSIGN_OR_RETURN(const double seconds, Do(Ask::kTime));
  took_ = std::chrono::duration<double>(Clock::now() - start).count();
  return seconds;
}

absl::Status ThreadsBeside::CheckResults() { return AgreeOn(processes_, Do(Ask::kCheck).status()); }

// --- A socket.

BareSocket::BareSocket(Context& context, Socket socket, int64_t bytes)
    : context_(&context), socket_(std::move(socket)), bytes_(static_cast<size_t>(bytes)) {
  // A few bytes stay in the caches, as those of a small row do.
  const size_t room = bytes < (1 << 20) ? bytes_ : std::max<size_t>(2 * bytes_, 64 << 20);
  from_.assign(room, std::byte{1});
  to_.assign(room, std::byte{2});
}

absl::StatusOr<BareSocket> BareSocket::Connect(Context& context, int64_t bytes) {
  const HostPort here = {"127.0.0.1", 0};
  const auto deadline = NetClock::now() + std::chrono::seconds(20);
  const bool listens = context.rank() == 0;
  Socket listener, socket;
  int port = 0;
  if (listens) {
    DT_ASSIGN_OR_RETURN(listener, ListenAt(here));
    DT_ASSIGN_OR_RETURN(port, PortOf(listener));
  }
  DT_ASSIGN_OR_RETURN(const std::vector<int> ports, GatherValues(context, port));
  if (listens) {
    AwaitReadable(listener, deadline);
    DT_ASSIGN_OR_RETURN(socket, AcceptFrom(listener));
  } else {
    DT_ASSIGN_OR_RETURN(socket, ConnectTo({here.host, ports[0]}, deadline));
  }
  return BareSocket(context, std::move(socket), bytes);
}

absl::Status BareSocket::Exchange() {
  const absl::Span<const std::byte> from = absl::MakeConstSpan(from_).subspan(at_, bytes_);
  const absl::Span<std::byte> to = absl::MakeSpan(to_).subspan(at_, bytes_);
  at_ = at_ + 2 * bytes_ <= from_.size() ? at_ + bytes_ : 0;
  for (size_t sent = 0, received = 0; sent < bytes_ || received < bytes_;) {
    const short events = (sent < bytes_ ? POLLOUT : 0) | (received < bytes_ ? POLLIN : 0);
    pollfd wait = {socket_.fd(), events, 0};
    poll(&wait, 1, 1000);
    if (sent < bytes_) {
      DT_ASSIGN_OR_RETURN(const size_t some, socket_.SendSome(from.subspan(sent)));
      sent += some;
    }
    if (received < bytes_) {
      DT_ASSIGN_OR_RETURN(const size_t some, socket_.ReceiveSome(to.subspan(received)));
      received += some;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> BareSocket::TimeExchange() {
  return TimeOnAllRanks(*context_, [this] { return Exchange(); });
}

// --- Cores.

namespace {

const cpu_set_t& CoresAtStart() {
  static const cpu_set_t cores = [] {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof(allowed), &allowed);
    return allowed;
  }();
  return cores;
}

}  // namespace

void PinTo(int index) {
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &CoresAtStart()) || index-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

void UseAllCores() { sched_setaffinity(0, sizeof(cpu_set_t), &CoresAtStart()); }

// --- Benchmarks.

namespace {

class Silent final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

}  // namespace

void RunBenchmarks() {
  Silent silent;
  if (IsSpeaker()) {
    benchmark::RunSpecifiedBenchmarks();
  } else {
    benchmark::RunSpecifiedBenchmarks(&silent);
  }
}

}  // namespace dtensor::bench
