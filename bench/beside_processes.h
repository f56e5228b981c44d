// What work on processes is measured beside: the same on threads, and a bare socket.
#ifndef DTENSOR_BENCH_BESIDE_PROCESSES_H_
#define DTENSOR_BENCH_BESIDE_PROCESSES_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/bench/rank_work.h"
#include "dtensor/runtime/net/socket.h"
#include "dtensor/tensor/context.h"

namespace dtensor::bench {

// The same work on as many threads of rank 0's process, pinned, which sleep but for the rounds that
// they are asked for. Collective over the world of processes, but for the constructor.
class ThreadsBeside {
 public:
  ThreadsBeside(Context& world, MakeRankWork make);
  ~ThreadsBeside();

  absl::Status Prepare();
  // On rank 0, seconds; 0 elsewhere. The other ranks keep off the cores for about as long as the
  // round before took.
  absl::StatusOr<double> TimeRound();
  absl::Status CheckResults();

 private:
  enum class Ask { kPrepare, kTime, kCheck, kEnd };
  static absl::StatusOr<double> Answer(RankWork& work, Ask ask);
  absl::Status RunRank(Context& context);
  absl::StatusOr<double> Do(Ask ask);

  Context& processes_;
  const MakeRankWork make_;
  std::mutex mutex_;
  std::condition_variable asked_, done_;
  Ask ask_ = Ask::kPrepare;
  int number_ = 0;   // of what is asked for
  int missing_ = 0;  // ranks that have not done it
  bool over_ = false;
  absl::StatusOr<double> answer_ = 0.0;  // to what is asked for: seconds of the work, or an error
  double took_ = 0;                      // with what is around it
  absl::Status status_;                  // of the ranks as a whole
  std::thread threads_;                  // rank 0
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

// Runs the benchmarks that are registered; of several processes, which have the same ones, rank 0
// prints.
void RunBenchmarks();

}  // namespace dtensor::bench

#endif  // DTENSOR_BENCH_BESIDE_PROCESSES_H_
