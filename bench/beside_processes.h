// What a redistribution on processes is measured beside: the same on threads, and a bare socket.
#ifndef DTENSOR_BENCH_BESIDE_PROCESSES_H_
#define DTENSOR_BENCH_BESIDE_PROCESSES_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/bench/row_runner.h"
#include "dtensor/runtime/net/socket.h"
#include "dtensor/tensor/context.h"

namespace dtensor::bench {

// A row on threads of this process, pinned, which sleep but for the rounds that they are asked for.
// Of one thread.
class ThreadsBeside {
 public:
  explicit ThreadsBeside(const RowTask& task);
  ~ThreadsBeside();

  // Until they are prepared. Errors: theirs; also below.
  absl::Status Prepare();
  absl::StatusOr<double> TimeCalls();
  absl::Status CheckResults();

 private:
  enum class Work { kPrepare, kTime, kCheck, kEnd };
  absl::Status RunRank(Context& context);
  absl::StatusOr<double> Do(Work work);

  const RowTask& task_;
  std::mutex mutex_;
  std::condition_variable asked_, done_;
  Work work_ = Work::kPrepare;
  int number_ = 0;   // of the work that is asked for
  int missing_ = 0;  // ranks that have not done it
  bool over_ = false;
  double seconds_ = 0;
  absl::Status status_;
  std::thread world_;
};

// One connection between the two ranks of a world on this host, without any protocol.
class BareSocket {
 public:
  // Both send and receive `bytes` in an exchange. Collective.
  static absl::StatusOr<BareSocket> Connect(Context& context, int64_t bytes);
  // Seconds of an exchange, the same on both ranks. Collective.
  absl::StatusOr<double> TimeExchange();

 private:
  BareSocket(Context& context, Socket socket, int64_t bytes);
  absl::Status Exchange();

  Context* context_;
  Socket socket_;
  size_t bytes_;
  std::vector<std::byte> from_, to_;  // rotate, as the rows' tensors do
  size_t at_ = 0;
};

// This thread to the `index`-th of the cores that the program had at the first call; nothing where
// it had not as many. UseAllCores gives a thread all of these again.
void PinTo(int index);
void UseAllCores();

}  // namespace dtensor::bench

#endif  // DTENSOR_BENCH_BESIDE_PROCESSES_H_
