// Compiled without instrumentation (ordering.h): TSan is told of fibers and their orders here.
#include "dtensor/tools/cuda/fake/host_grid.h"

#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "dtensor/tools/cuda/fake/fake.h"
#include "dtensor/tools/cuda/fake/ordering.h"

#ifndef __x86_64__
#error "the host grid switches fibers on x86-64 alone"
#endif

extern "C" {
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** saved, const void* bottom, size_t size);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* saved, const void** bottom, size_t* size);
[[gnu::weak]] void __asan_poison_memory_region(const volatile void* address, size_t size);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* address, size_t size);

// Keeps the registers that a function must keep, and the stack pointer in *save; goes on at `load`.
void DtensorSwitchStack(void** save, void* load);
}
asm(R"(
.text
.type DtensorSwitchStack, @function
DtensorSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size DtensorSwitchStack, . - DtensorSwitchStack
)");

namespace dtensor::fake_cuda {

constinit thread_local BuiltIns built_ins;

namespace {

constexpr unsigned kNoOrder = 1;  // __tsan_switch_to_fiber_no_sync
constexpr size_t kStackBytes = 320 << 10;
// Stacks begin at addresses unlike enough that threads do not push each other's out of the cache.
constexpr size_t kUnlike = 9 * 64, kUnlikeBytes = 64 << 10;
constexpr size_t kArenaBytes = 64 << 20;  // of shared memory, for the blocks of one grid
constexpr size_t kGap = 1024;             // between shared arrays, at multiples of which they begin
constexpr int kMaxThreads = 1024;

class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes) {
    void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) Refuse("a launch", "there is no memory for the host grid");
    data_ = static_cast<char*>(data);
  }
  Pages(Pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  ~Pages() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  char* data() const { return data_; }

 private:
  char* data_;
  size_t bytes_;
};

// Where the threads of a block, or of a warp, wait for each other. Two addresses in turn stand for
// it in TSan's eyes: who comes to the next barrier early must not seem to have been at this one.
struct Barrier {
  int waiting = 0, line = 0;
  unsigned generation = 0;
  char order[2];
  uint64_t brought[2][kWarpSize];  // to shuffles of a warp, in turn
};

struct Fiber {
  Pages stack{kStackBytes};
  void* stack_pointer = nullptr;
  void* tsan = nullptr;
};

// The grids of one stream: its threads' stacks, and where they are.
class Executor {
 public:
  ~Executor() {
    for (const Fiber& fiber : fibers_) {
      if (fiber.tsan != nullptr) __tsan_destroy_fiber(fiber.tsan);
    }
  }

  void Run(dim3 blocks, dim3 threads, const std::function<void()>& thread);

  int current() const { return current_; }
  void WaitForBlock(int line);
  void WaitForWarp(unsigned mask, int line);
  uint64_t Shuffle(unsigned mask, uint64_t bits, int lane, int line);
  void FromAllLanes(uint64_t bits, uint64_t (&all)[kWarpSize], int line);
  void* Shared(const void* site, size_t bytes);
  void FenceAsyncProxy();
  void RequireFenced(const char* data, size_t bytes);

 private:
  void RunBlock();
  void StartThread(int i);
  void Resume(int i);
  void Suspend(bool ended);
  const uint64_t* Bring(unsigned mask, uint64_t bits, int line);
  static void Entry();
  void Wait(Barrier& barrier, int expected, int first, int end, int line, const char* call);
  unsigned Random() { return random_ = random_ * 1664525u + 1013904223u, random_ >> 8; }
  int Lanes(int warp) const { return std::min(threads_ - warp * kWarpSize, kWarpSize); }

  std::vector<Fiber> fibers_;
  int threads_ = 0, ended_ = 0, current_ = -1;
  std::vector<int> ready_;
  std::vector<Barrier> barriers_;  // the block's, then one for each warp
  const std::function<void()>* thread_ = nullptr;
  unsigned random_ = 12345;

  struct Array {
    const void* site;
    char* data;
    size_t bytes;
    bool is_fenced = false;  // the asynchronous proxy sees something of it
  };
  Pages arena_{kArenaBytes};
  // What that sees, where arena_ has it. No memory of fibers' own, which TSan would have an eye on.
  Pages fenced_arena_{kArenaBytes};
  char* FencedOf(const Array& array) { return fenced_arena_.data() + (array.data - arena_.data()); }
  size_t arena_used_ = 0, block_bytes_ = 0;
  std::vector<Array> arrays_;  // of this block
  std::vector<int> fences_;    // of each of its threads
  int common_fences_ = 0;      // that all have had

  void* main_pointer_ = nullptr;
  void* main_tsan_ = nullptr;
  const void* main_bottom_ = nullptr;
  size_t main_bytes_ = 0;
  char launched_ = 0, ended_order_ = 0;  // addresses for TSan
};

Executor& TheExecutor() {
  static thread_local Executor executor;
  return executor;
}

// Not through memset and its kin, which sanitizers watch.
void Fill(char* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) reinterpret_cast<volatile char*>(data)[i] = char(0xFF);
}
void Copy(const char* from, size_t bytes, char* to) {
  for (size_t i = 0; i < bytes; ++i) to[i] = reinterpret_cast<const volatile char*>(from)[i];
}
bool AreSame(const char* a, const char* b, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    if (reinterpret_cast<const volatile char*>(a)[i] != b[i]) return false;
  }
  return true;
}

void Executor::Entry() {
  Executor& self = TheExecutor();
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(nullptr, &self.main_bottom_, &self.main_bytes_);
  }
  Acquire(&self.launched_);
  (*self.thread_)();
  Release(&self.ended_order_);
  ++self.ended_;
  self.Suspend(true);
}

void Executor::StartThread(int i) {
  Fiber& fiber = fibers_[i];
  // What DtensorSwitchStack pops: six registers, and where it returns to. A function begins with
  // its stack 8 bytes off a multiple of 16.
  const size_t bytes = kStackBytes - i * kUnlike % kUnlikeBytes;
  void** const top = reinterpret_cast<void**>(fiber.stack.data() + bytes) - 2;
  *top = reinterpret_cast<void*>(&Entry);
  std::fill_n(top - 6, 6, nullptr);
  fiber.stack_pointer = top - 6;
  if (__tsan_create_fiber != nullptr && fiber.tsan == nullptr) {
    fiber.tsan = __tsan_create_fiber(0);
  }
}

void Executor::Resume(int i) {
  Fiber& fiber = fibers_[i];
  current_ = i;
  const unsigned x = built_ins.threads.x, y = built_ins.threads.y;
  built_ins.thread = {i % x, i / x % y, i / (x * y)};
  if (fiber.tsan != nullptr) __tsan_switch_to_fiber(fiber.tsan, kNoOrder);
  void* saved = nullptr;
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(&saved, fiber.stack.data(), kStackBytes);
  }
  DtensorSwitchStack(&main_pointer_, fiber.stack_pointer);
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(saved, nullptr, nullptr);
  }
}

// On a fiber: goes back to RunBlock.
void Executor::Suspend(bool ended) {
  Fiber& fiber = fibers_[current_];
  if (fiber.tsan != nullptr) __tsan_switch_to_fiber(main_tsan_, kNoOrder);
  void* saved = nullptr;
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(ended ? nullptr : &saved, main_bottom_, main_bytes_);
  }
  DtensorSwitchStack(&fiber.stack_pointer, main_pointer_);
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(saved, nullptr, nullptr);
  }
}

// The last of `expected` that comes makes the others ready, and goes on.
void Executor::Wait(Barrier& barrier, int expected, int first, int end, int line,
                    const char* call) {
  if (barrier.waiting > 0 && barrier.line != line) {
    Refuse(call, "threads that wait for each other are at different lines");
  }
  barrier.line = line;
  char* const order = &barrier.order[barrier.generation & 1];
  Release(order);
  if (++barrier.waiting == expected) {
    barrier.waiting = 0;
    ++barrier.generation;
    for (int i = first; i < end; ++i) {
      if (i != current_) ready_.push_back(i);
    }
  } else {
    Suspend(false);
  }
  Acquire(order);
}

void Executor::WaitForBlock(int line) {
  Wait(barriers_[0], threads_, 0, threads_, line, "__syncthreads");
}

void Executor::WaitForWarp(unsigned mask, int line) {
  if (mask != ~0u) Refuse("a warp", "only masks of all lanes are faked");
  const int warp = current_ / kWarpSize, first = warp * kWarpSize, lanes = Lanes(warp);
  Wait(barriers_[1 + warp], lanes, first, first + lanes, line, "a warp");
}

// What all lanes of the warp brought. Who is at the next exchange writes to the other place; nobody
// is two ahead.
const uint64_t* Executor::Bring(unsigned mask, uint64_t bits, int line) {
  Barrier& warp = barriers_[1 + current_ / kWarpSize];
  uint64_t* const brought = warp.brought[warp.generation & 1];
  brought[current_ % kWarpSize] = bits;
  WaitForWarp(mask, line);
  return brought;
}

uint64_t Executor::Shuffle(unsigned mask, uint64_t bits, int lane, int line) {
  const uint64_t* const brought = Bring(mask, bits, line);
  return lane >= 0 && lane < Lanes(current_ / kWarpSize) ? brought[lane] : bits;
}

void Executor::FromAllLanes(uint64_t bits, uint64_t (&all)[kWarpSize], int line) {
  const uint64_t* const brought = Bring(~0u, bits, line);
  if (Lanes(current_ / kWarpSize) < kWarpSize) Refuse("a warp", "it has not all of its lanes");
  std::copy_n(brought, kWarpSize, all);
}

// Each block has a piece of its own, for no barrier orders two blocks.
void* Executor::Shared(const void* site, size_t bytes) {
  for (const Array& array : arrays_) {
    if (array.site == site) return array.data;
  }
  const size_t taken = (bytes + 2 * kGap - 1) / kGap * kGap;
  block_bytes_ += bytes;
  if (block_bytes_ > kSharedBytes) Refuse("a block", "it uses more than 227 KiB of shared memory");
  char* const data = arena_.data() + arena_used_;
  arena_used_ += taken;
  Fill(data, bytes);
  if (__asan_poison_memory_region != nullptr) {
    __asan_poison_memory_region(data + bytes, taken - bytes);
  }
  arrays_.push_back({site, data, bytes});
  return data;
}

void Executor::FenceAsyncProxy() {
  ++fences_[current_];
  if (*std::min_element(fences_.begin(), fences_.end()) == common_fences_) return;
  ++common_fences_;
  for (Array& array : arrays_) {
    array.is_fenced = true;
    Copy(array.data, array.bytes, FencedOf(array));
  }
}

void Executor::RequireFenced(const char* data, size_t bytes) {
  for (const Array& array : arrays_) {
    if (data < array.data || data >= array.data + array.bytes) continue;
    const size_t at = data - array.data;
    if (at + bytes > array.bytes) Refuse("wgmma", "it reads beyond an array of shared memory");
    if (!array.is_fenced || !AreSame(data, FencedOf(array) + at, bytes)) {
      Refuse("wgmma", "it reads what was written behind the last fence.proxy.async of all threads");
    }
    return;
  }
  Refuse("wgmma", "it reads what is not shared memory");
}

void Executor::RunBlock() {
  ended_ = 0;
  block_bytes_ = 0;
  arrays_.clear();
  fences_.assign(threads_, 0);
  common_fences_ = 0;
  if (arena_used_ + 2 * kSharedBytes > kArenaBytes) {  // used again: in TSan's eyes in order
    if (__asan_unpoison_memory_region != nullptr) {
      __asan_unpoison_memory_region(arena_.data(), arena_used_);
    }
    arena_used_ = 0;
    Acquire(&ended_order_);
    Release(&launched_);
  }
  ready_.resize(threads_);
  for (int i = 0; i < threads_; ++i) {
    StartThread(i);
    ready_[i] = i;
  }
  while (!ready_.empty()) {
    std::swap(ready_[Random() % ready_.size()], ready_.back());
    const int next = ready_.back();
    ready_.pop_back();
    Resume(next);
  }
  if (ended_ == threads_) return;
  Refuse(barriers_[0].waiting > 0 ? "__syncthreads" : "a warp",
         barriers_[0].waiting > 0 ? "not all threads of the block reach it"
                                  : "not all of its lanes come to where others wait for them");
}

void Executor::Run(dim3 blocks, dim3 threads, const std::function<void()>& thread) {
  threads_ = static_cast<int>(threads.x * threads.y * threads.z);
  while (fibers_.size() < static_cast<size_t>(threads_)) fibers_.emplace_back();
  barriers_.assign(1 + (threads_ + kWarpSize - 1) / kWarpSize, Barrier());
  thread_ = &thread;
  built_ins.threads = threads;
  built_ins.blocks = blocks;
  if (__tsan_get_current_fiber != nullptr) main_tsan_ = __tsan_get_current_fiber();
  Release(&launched_);
  // All blocks, from anywhere on, by a step that has no divisor in common with their number.
  const uint64_t n = uint64_t{blocks.x} * blocks.y * blocks.z;
  uint64_t step = Random() % n + 1;
  while (std::gcd(step, n) != 1) ++step;
  uint64_t block = Random() % n;
  for (uint64_t i = 0; i < n; ++i, block = (block + step) % n) {
    built_ins.block = {static_cast<unsigned>(block % blocks.x),
                       static_cast<unsigned>(block / blocks.x % blocks.y),
                       static_cast<unsigned>(block / blocks.x / blocks.y)};
    RunBlock();
  }
  Acquire(&ended_order_);
  if (__asan_unpoison_memory_region != nullptr) {
    __asan_unpoison_memory_region(arena_.data(), arena_used_);
  }
  arena_used_ = 0;
}

}  // namespace

int Lane() { return TheExecutor().current() % kWarpSize; }
void SyncThreads(int line) { TheExecutor().WaitForBlock(line); }
void SyncWarp(unsigned mask, int line) { TheExecutor().WaitForWarp(mask, line); }
uint64_t Shuffle(unsigned mask, uint64_t bits, int lane, int line) {
  return TheExecutor().Shuffle(mask, bits, lane, line);
}
void FromAllLanes(uint64_t bits, uint64_t (&all)[kWarpSize], int line) {
  TheExecutor().FromAllLanes(bits, all, line);
}
bool AnyLane(unsigned mask, bool holds, int line) {
  if (mask != ~0u) Refuse("__any_sync", "of a whole warp alone is what is faked");
  uint64_t all[kWarpSize];
  FromAllLanes(holds, all, line);
  return std::find(std::begin(all), std::end(all), 1) != std::end(all);
}
void* Shared(const void* site, size_t bytes) { return TheExecutor().Shared(site, bytes); }
void FenceAsyncProxy() { TheExecutor().FenceAsyncProxy(); }
void RequireFenced(const void* data, size_t bytes) {
  TheExecutor().RequireFenced(static_cast<const char*>(data), bytes);
}

void RunGrid(dim3 blocks, dim3 threads, const std::function<void()>& thread) {
  TheExecutor().Run(blocks, threads, thread);
}

void LaunchGrid(cudaStream_t stream, dim3 blocks, dim3 threads, const Kernel& kernel,
                std::function<void()> thread) {
  const uint64_t size = uint64_t{threads.x} * threads.y * threads.z;
  if (size == 0 || size > kMaxThreads || threads.z > 64) {
    Refuse("a launch", "a block has 1 to 1024 threads, and at most 64 along z");
  }
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0 || blocks.x > 0x7fffffffu ||
      blocks.y > 65535 || blocks.z > 65535) {
    Refuse("a launch", "a grid has 1 to 2^31 - 1 blocks along x, to 65535 along y and z");
  }
  const int gpu = CurrentGpu();
  if (GpuOf(stream) != gpu) Refuse("a launch", "the stream is another GPU's");
  for (const Kernel::Argument* it = kernel.arguments; it->bytes > 0; ++it) {
    RequireAccess(gpu, it->data, it->bytes);
  }
  LoadKernel(gpu, kernel.address);
  Enqueue(stream,
          [blocks, threads, thread = std::move(thread)] { RunGrid(blocks, threads, thread); });
}

}  // namespace dtensor::fake_cuda
