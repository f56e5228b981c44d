// What the kernels of the fake NCCL do, on their stream. Memory is read and written by memcpy,
// which TSan sees; what is between lies on the stream's own stack, and makes no order (ordering.h).
// A kernel that fails, or whose peer is gone, goes on until its communicator is aborted, as NCCL's.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <string>
#include <vector>

#include "dtensor/tools/cuda/fake/nccl_comm.h"

using dtensor::fake_cuda::BytesOf;
using dtensor::fake_cuda::NcclOpKind;
using dtensor::fake_cuda::SleepMicroseconds;

namespace {

constexpr size_t kChunk = 32 << 10;

struct Header {
  uint32_t collective;  // its kind; 0: of a pair
  uint32_t type;
  uint64_t count;
};

constexpr auto kReduceKind = static_cast<uint32_t>(NcclOpKind::kReduceScatter);

const char* NameOf(uint32_t type) {
  constexpr const char* kNames[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                    "uint64", "float16", "float32", "float64", "bfloat16"};
  return type < std::size(kNames) ? kNames[type] : "unknown";
}

std::string TextOf(const Header& header) {
  const char* const what = header.collective == 0             ? ""
                           : header.collective == kReduceKind ? " to add"
                                                              : " to all";
  return std::to_string(header.count) + " " + NameOf(header.type) + what;
}

// How long a call may wait for a peer, in ms; 0: for ever, as NCCL.
long Patience() {
  const char* const said = std::getenv("DTENSOR_FAKE_NCCL_PATIENCE_MS");
  return said == nullptr ? 0 : std::atol(said);
}

// Of all communicators of this process.
void CountGroup() {
  static const char* const dies = std::getenv("DTENSOR_FAKE_NCCL_DIES");
  static int groups = 0;
  if (dies == nullptr || __atomic_add_fetch(&groups, 1, __ATOMIC_RELAXED) != std::atoi(dies))
    return;
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  std::printf("fault at %ld.%06ld\n", static_cast<long>(now.tv_sec), now.tv_nsec / 1000);
  std::fflush(stdout);
  raise(SIGKILL);
}

}  // namespace

// One message to a peer, or from it.
struct ncclComm::Transfer {
  Header header = {};
  Header theirs = {};
  const char* from = nullptr;
  char* to = nullptr;
  size_t bytes = 0, header_done = 0, done = 0;
};

struct ncclComm::Batch {
  std::vector<std::deque<Transfer>> out, in;  // [peer]
  bool done() const {
    for (const auto* const side : {&out, &in}) {
      for (const auto& transfers : *side) {
        if (!transfers.empty()) return false;
      }
    }
    return true;
  }
};

void ncclComm::Run(const std::vector<Op>& ops) {
  Batch batch;
  batch.out.resize(size);
  batch.in.resize(size);
  std::vector<std::vector<char>> terms(ops.size());  // of sums, by rank
  for (size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    const size_t bytes = op.count * BytesOf(op.type);
    const bool gathers = op.kind == NcclOpKind::kAllGather;
    const bool reduces = op.kind == NcclOpKind::kReduceScatter;
    if (reduces) terms[i].resize(size * bytes);
    const Header header = {op.is_collective() ? static_cast<uint32_t>(op.kind) : 0,
                           static_cast<uint32_t>(op.type), op.count};
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank || (!op.is_collective() && peer != op.peer)) continue;
      const auto* const from = static_cast<const char*>(op.from) + (reduces ? peer * bytes : 0);
      auto* const to = reduces ? terms[i].data() + peer * bytes
                               : static_cast<char*>(op.to) + (gathers ? peer * bytes : 0);
      if (op.kind != NcclOpKind::kRecv) {
        batch.out[peer].push_back({.header = header, .from = from, .bytes = bytes});
      }
      if (op.kind != NcclOpKind::kSend) {
        batch.in[peer].push_back({.header = header, .to = to, .bytes = bytes});
      }
    }
  }
  const std::string wrong = MoveOwn(ops);
  if (!wrong.empty()) Fail(ncclInvalidUsage, wrong, true);
  const long patience = Patience();
  CountGroup();
  for (long idle_us = 0; !batch.done() && !is_stopped();) {
    bool any = false;
    for (int peer = 0; peer < size && !is_failed(); ++peer) {
      any = Send(peer, batch) || any;
      any = Receive(peer, batch) || any;
    }
    if (any) {
      idle_us = 0;
      continue;
    }
    SleepMicroseconds(20);
    idle_us += 80;  // with what a sleep takes
    if (patience > 0 && idle_us > patience * 1000 && !is_failed()) LosePatience(batch);
  }
  while (!wrong.empty() && !is_stopped()) SleepMicroseconds(100);
  for (size_t i = 0; i < ops.size() && batch.done(); ++i) {
    if (ops[i].kind == NcclOpKind::kReduceScatter) Add(ops[i], terms[i]);
  }
}

namespace {

// to[i] = terms[first][i] + terms[first + 1][i] + ..., and round, rounded each time.
template <typename T>
void AddRounded(size_t count, int ranks, int first, const std::vector<char>& terms, void* to) {
  const auto* const data = reinterpret_cast<const T*>(terms.data());
  for (size_t i = 0; i < count; ++i) {
    T sum = data[first * count + i];
    for (int k = 1; k < ranks; ++k) {
      const T term = data[(first + k) % ranks * count + i];
      if constexpr (sizeof(T) == 2) {
        sum = static_cast<T>(static_cast<float>(sum) + static_cast<float>(term));
      } else {
        sum += term;
      }
    }
    std::memcpy(static_cast<char*>(to) + i * sizeof(T), &sum, sizeof(T));
  }
}

}  // namespace

// In a ring's order: a rank's sum begins at its neighbour, and comes to it at last.
void ncclComm::Add(const Op& op, const std::vector<char>& others) {
  std::vector<char> terms = others;
  const size_t bytes = op.count * BytesOf(op.type);
  if (bytes == 0) return;
  std::memcpy(terms.data() + rank * bytes, static_cast<const char*>(op.from) + rank * bytes, bytes);
  const int first = (rank + 1) % size;
  switch (op.type) {
    case ncclFloat16:
      return AddRounded<__half>(op.count, size, first, terms, op.to);
    case ncclBfloat16:
      return AddRounded<__nv_bfloat16>(op.count, size, first, terms, op.to);
    case ncclFloat32:
      return AddRounded<float>(op.count, size, first, terms, op.to);
    default:
      return AddRounded<double>(op.count, size, first, terms, op.to);
  }
}

// What a rank sends itself, it receives in the same group.
std::string ncclComm::MoveOwn(const std::vector<Op>& ops) {
  std::deque<const Op*> sends, receives;
  for (const Op& op : ops) {
    const size_t bytes = op.count * BytesOf(op.type);
    if (op.kind == NcclOpKind::kAllGather) {
      char* const to = static_cast<char*>(op.to) + rank * bytes;
      if (to != op.from) std::memcpy(to, op.from, bytes);
    } else if (op.peer == rank) {
      (op.kind == NcclOpKind::kSend ? sends : receives).push_back(&op);
    }
  }
  if (sends.size() != receives.size()) {
    return "rank " + std::to_string(rank) + " sends itself " + std::to_string(sends.size()) +
           " messages, and receives " + std::to_string(receives.size()) + " in the same group";
  }
  for (size_t i = 0; i < sends.size(); ++i) {
    const Op &send = *sends[i], &receive = *receives[i];
    if (send.count != receive.count || send.type != receive.type) {
      return "rank " + std::to_string(rank) + " receives from itself another message than it sends";
    }
    std::memcpy(receive.to, send.from, send.count * BytesOf(send.type));
  }
  return "";
}

bool ncclComm::Send(int peer, Batch& batch) {
  if (batch.out[peer].empty()) return false;
  Transfer& transfer = batch.out[peer].front();
  char chunk[kChunk];
  size_t more = 0;
  if (transfer.header_done < sizeof(Header)) {
    const auto* const header = reinterpret_cast<const char*>(&transfer.header);
    more = links_.data(peer).Write(header + transfer.header_done,
                                   sizeof(Header) - transfer.header_done);
    transfer.header_done += more;
  } else if (transfer.done < transfer.bytes) {
    const size_t size = std::min(kChunk, transfer.bytes - transfer.done);
    std::memcpy(chunk, transfer.from + transfer.done, size);
    more = links_.data(peer).Write(chunk, size);
    transfer.done += more;
  }
  const bool done = transfer.header_done == sizeof(Header) && transfer.done == transfer.bytes;
  if (done) batch.out[peer].pop_front();
  return done || more > 0;
}

bool ncclComm::Receive(int peer, Batch& batch) {
  if (batch.in[peer].empty()) return false;
  Transfer& transfer = batch.in[peer].front();
  char chunk[kChunk];
  bool ended = false;
  size_t more = 0;
  if (transfer.header_done < sizeof(Header)) {
    auto* const header = reinterpret_cast<char*>(&transfer.theirs);
    more = links_.data(peer).Read(header + transfer.header_done,
                                  sizeof(Header) - transfer.header_done, ended);
    transfer.header_done += more;
    if (transfer.header_done == sizeof(Header) && !HeaderFits(peer, transfer)) return false;
  } else if (transfer.done < transfer.bytes) {
    const size_t size = std::min(kChunk, transfer.bytes - transfer.done);
    more = links_.data(peer).Read(chunk, size, ended);
    std::memcpy(transfer.to + transfer.done, chunk, more);
    transfer.done += more;
  }
  const bool done = transfer.header_done == sizeof(Header) && transfer.done == transfer.bytes;
  if (done) batch.in[peer].pop_front();
  return done || more > 0;
}

bool ncclComm::HeaderFits(int peer, const Transfer& transfer) {
  const Header &mine = transfer.header, &theirs = transfer.theirs;
  if (mine.collective == theirs.collective && mine.type == theirs.type &&
      mine.count == theirs.count) {
    return true;
  }
  Fail(ncclInvalidUsage,
       "rank " + std::to_string(rank) + " receives " + TextOf(mine) + " from rank " +
           std::to_string(peer) + ", which sends " + TextOf(theirs),
       true);
  return false;
}

void ncclComm::LosePatience(const Batch& batch) {
  for (int peer = 0; peer < size; ++peer) {
    const bool sends = !batch.out[peer].empty();
    if (!sends && batch.in[peer].empty()) continue;
    const Transfer& transfer = (sends ? batch.out : batch.in)[peer].front();
    Fail(ncclInvalidUsage,
         "rank " + std::to_string(rank) + (sends ? " sends " : " waits for ") +
             TextOf(transfer.header) + ", of which rank " + std::to_string(peer) +
             " knows nothing for " + std::to_string(Patience()) + " ms",
         true);
    return;
  }
}
