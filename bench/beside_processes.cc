#include "dtensor/bench/beside_processes.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "dtensor/bench/rank_time.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/gather_values.h"

namespace dtensor::bench {

// --- Threads.

ThreadsBeside::ThreadsBeside(const RowTask& task) : task_(task) {
  world_ = std::thread([this] {
    UseAllCores();  // of which RunRanks takes its own
    const absl::Status status =
        RunRanks(task_.row.ranks(), [this](Context& context) { return RunRank(context); },
                 {.pin_threads = true});
    const std::lock_guard lock(mutex_);
    status_.Update(status);
    over_ = true;
    done_.notify_all();
  });
}

ThreadsBeside::~ThreadsBeside() {
  Do(Work::kEnd).status().IgnoreError();
  world_.join();
}

absl::Status ThreadsBeside::RunRank(Context& context) {
  const std::unique_ptr<RowRunner> runner = MakeRowRunner(context, task_);
  for (int seen = 0;;) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      asked_.wait(lock, [&] { return number_ != seen; });
      seen = number_;
      work = work_;
    }
    double seconds = 0;
    if (work == Work::kPrepare) DT_RETURN_IF_ERROR(runner->Prepare());
    if (work == Work::kCheck) DT_RETURN_IF_ERROR(runner->CheckResults());
    if (work == Work::kTime) {
      DT_ASSIGN_OR_RETURN(seconds, runner->TimeCalls());
    }
    const std::lock_guard lock(mutex_);
    seconds_ = seconds;
    if (--missing_ == 0) done_.notify_all();
    if (work == Work::kEnd) return absl::OkStatus();
  }
}

absl::StatusOr<double> ThreadsBeside::Do(Work work) {
  std::unique_lock lock(mutex_);
  work_ = work;
  ++number_;
  missing_ = task_.row.ranks();
  asked_.notify_all();
  done_.wait(lock, [&] { return missing_ == 0 || over_; });
  DT_RETURN_IF_ERROR(status_);
  return seconds_;
}

absl::Status ThreadsBeside::Prepare() { return Do(Work::kPrepare).status(); }
absl::StatusOr<double> ThreadsBeside::TimeCalls() { return Do(Work::kTime); }
absl::Status ThreadsBeside::CheckResults() { return Do(Work::kCheck).status(); }

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

}  // namespace dtensor::bench
