// MPI's collectives for the rows of redistribute.py that one of them can do: the third peer.
//
//   mpirun -n 2 bazel-bin/bench/mpi_collectives BYTES...
//
// For each size of the global f32 tensor a line of JSON: {"name": "2/S0->R/f32/64MiB", "us": 5000}.
// The time is the slowest rank's, the median over rounds: of one call, or of many for small sizes.
// Buffers are touched before, and rotate from 1 MiB on. The all-to-all moves contiguous blocks:
// S0->S1 would pack too.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr long kRotation = 128L << 20;

struct Buffers {
  std::vector<float> send, receive;
};

struct Collective {
  const char* pair;
  long send_parts, receive_parts;  // of the global tensor, in shards; 0: all of it
  void (*call)(float* send, float* receive, int shard, int ranks);
};

constexpr Collective kCollectives[] = {
    {"S0->R", 1, 0,
     [](float* send, float* receive, int shard, int) {
       MPI_Allgather(send, shard, MPI_FLOAT, receive, shard, MPI_FLOAT, MPI_COMM_WORLD);
     }},
    {"S0->S1", 1, 1,
     [](float* send, float* receive, int shard, int ranks) {
       MPI_Alltoall(send, shard / ranks, MPI_FLOAT, receive, shard / ranks, MPI_FLOAT,
                    MPI_COMM_WORLD);
     }},
    {"P->S0", 0, 1,
     [](float* send, float* receive, int shard, int) {
       MPI_Reduce_scatter_block(send, receive, shard, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
     }},
    {"P->R", 0, 0, [](float* send, float* receive, int shard, int ranks) {
       MPI_Allreduce(send, receive, shard * ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
     }}};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Of one call among `calls`.
double Timed(const Collective& collective, Buffers& buffers, int shard, int ranks, int calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  for (int i = 0; i < calls; ++i) {
    collective.call(buffers.send.data(), buffers.receive.data(), shard, ranks);
  }
  const double mine = (MPI_Wtime() - start) / calls;
  double slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

double Measure(const Collective& collective, long elements, int ranks) {
  const long shard = elements / ranks;
  const long send = collective.send_parts == 0 ? elements : shard;
  const long receive = collective.receive_parts == 0 ? elements : shard;
  const long footprint = (send + receive) * ranks * static_cast<long>(sizeof(float));
  const bool cached = elements < (1 << 18);
  const long sets = cached ? 1 : std::max(2L, kRotation / footprint);
  const int calls = cached ? 100 : 1;
  std::vector<Buffers> buffers(sets);
  for (Buffers& b : buffers) b = {std::vector<float>(send, 1), std::vector<float>(receive, 1)};
  std::vector<double> times;
  double spent = 0;  // the same on all ranks, as each time is
  for (int i = 0; i < 7 + sets || (spent < 0.15 && i < 2000); ++i) {
    const double time = Timed(collective, buffers[i % sets], static_cast<int>(shard), ranks, calls);
    spent += time * calls;
    if (i >= sets) times.push_back(time);
  }
  return Median(times) * 1e6;
}

std::string Size(long bytes) {
  if (bytes % 1024 != 0) return std::to_string(bytes / 4);
  return bytes % (1 << 20) != 0 ? std::to_string(bytes >> 10) + "KiB"
                                : std::to_string(bytes >> 20) + "MiB";
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 1; i < argc; ++i) {
    const long bytes = std::atol(argv[i]), elements = bytes / 4;
    if (elements % (static_cast<long>(ranks) * ranks) != 0) continue;
    for (const Collective& collective : kCollectives) {
      const double us = Measure(collective, elements, ranks);
      if (rank != 0) continue;
      std::printf("{\"name\": \"%d/%s/f32/%s\", \"us\": %.3f}\n", ranks, collective.pair,
                  Size(bytes).c_str(), us);
      std::fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
