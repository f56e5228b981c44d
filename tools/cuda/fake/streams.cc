// Streams and events of the fake CUDA runtime. Compiled without TSan's instrumentation
// (ordering.h).
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtensor/tools/cuda/fake/fake.h"
#include "dtensor/tools/cuda/fake/ordering.h"

using dtensor::fake_cuda::Acquire;
using dtensor::fake_cuda::CurrentGpu;
using dtensor::fake_cuda::Gate;
using dtensor::fake_cuda::Refuse;
using dtensor::fake_cuda::Release;
using dtensor::fake_cuda::RequireChosen;
using dtensor::fake_cuda::Return;
using dtensor::fake_cuda::SleepMicroseconds;
using dtensor::fake_cuda::SleepWhile;
using dtensor::fake_cuda::SpinLock;
using dtensor::fake_cuda::Wake;

// Its thread goes on after cudaStreamDestroy until its work is done.
struct CUstream_st {
 public:
  CUstream_st(int gpu, unsigned seed) : gpu_(gpu), random_(seed) {
    std::thread([this] { Run(); }).detach();
  }

  int gpu() const { return gpu_; }

  void Push(std::function<void()> work) {
    auto* const operation = new Operation{std::move(work)};
    Release(operation);
    {
      std::lock_guard lock(mutex_);
      (last_ == nullptr ? first_ : last_->next) = operation;
      last_ = operation;
      ++pushed_;
    }
    WakeThread();
  }
  // How many pieces of work it was given, and has done.
  uint64_t pushed() {
    std::lock_guard lock(mutex_);
    return pushed_;
  }
  uint64_t done() const { return __atomic_load_n(&done_, __ATOMIC_ACQUIRE); }
  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    WakeThread();
  }

 private:
  // A list of its own: the memory that a container takes and gives back in between would be a race
  // to TSan, or an order.
  struct Operation {
    std::function<void()> run;
    Operation* next = nullptr;
  };

  // Null when the stream ends.
  Operation* Next() {
    while (true) {
      const int news = __atomic_load_n(&news_, __ATOMIC_ACQUIRE);
      {
        std::lock_guard lock(mutex_);
        if (Operation* const operation = first_; operation != nullptr) {
          first_ = operation->next;
          if (first_ == nullptr) last_ = nullptr;
          return operation;
        }
        if (closed_) return nullptr;
      }
      SleepWhile(&news_, news);
    }
  }
  void WakeThread() {
    __atomic_add_fetch(&news_, 1, __ATOMIC_RELEASE);
    Wake(&news_);
  }
  void Run();

  // Now and then what was launched begins late, so that a program that does not wait reads what was
  // there before.
  void Dawdle() {
    random_ = random_ * 1664525u + 1013904223u;
    if ((random_ >> 28) == 0) SleepMicroseconds((random_ >> 20) & 0xff);
  }

  const int gpu_;
  unsigned random_;
  SpinLock mutex_;
  Operation *first_ = nullptr, *last_ = nullptr;
  uint64_t pushed_ = 0, done_ = 0;  // done_: atomic
  bool closed_ = false;
  int news_ = 0;  // atomic: changes with each
};

struct CUevent_st {
 public:
  explicit CUevent_st(int gpu) : gpu_(gpu) {}

  int gpu() const { return gpu_; }

  // What was recorded last, held for the caller; null: nothing yet.
  Gate* Last() {
    std::lock_guard lock(mutex_);
    if (recorded_ != nullptr) recorded_->Hold();
    return recorded_;
  }
  void Record(Gate* gate) {
    std::lock_guard lock(mutex_);
    std::swap(recorded_, gate);
    if (gate != nullptr) gate->Drop();
  }

 private:
  const int gpu_;
  SpinLock mutex_;
  Gate* recorded_ = nullptr;
};

namespace {

// Handles of one kind. Those that were destroyed are kept, so that no other gets their address; at
// the end of the program one that was not destroyed is refused.
template <typename Handle>
class Handles {
 public:
  explicit Handles(const char* kind) : kind_(kind) {}

  Handle Add(Handle handle) { return *open_.insert(handle).first; }
  void Require(const char* call, Handle handle) const {
    if (open_.count(handle) == 0) {
      Refuse(call, (std::string("there is no such ") + kind_ + ", or it was destroyed").c_str());
    }
  }
  void End(const char* call, Handle handle) {
    Require(call, handle);
    open_.erase(handle);
    ended_.insert(handle);
  }
  // Also those that were destroyed, which may work on.
  template <typename Fn>
  void ForAll(const Fn& fn) const {
    for (const Handle handle : open_) fn(handle);
    for (const Handle handle : ended_) fn(handle);
  }
  void RequireNoneLeft() const {
    if (open_.empty()) return;
    Refuse("at the end of the program", (std::string("not destroyed: ") + kind_).c_str());
  }

 private:
  const char* const kind_;
  std::set<Handle> open_, ended_;
};

// All streams and events that there are. At the end of the program it waits for the streams that
// work on.
class Runtime {
 public:
  cudaStream_t MakeStream() {
    std::lock_guard lock(mutex_);
    return streams_.Add(StartStream());
  }
  // `stream`, or the default one of the current GPU. Refuses what is none.
  cudaStream_t Find(const char* call, cudaStream_t stream) {
    std::lock_guard lock(mutex_);
    if (stream == nullptr) {
      cudaStream_t& common = default_[CurrentGpu()];
      if (common == nullptr) common = StartStream();
      return common;
    }
    streams_.Require(call, stream);
    RequireChosen(call, stream->gpu());
    return stream;
  }
  void Destroy(cudaStream_t stream) {
    std::lock_guard lock(mutex_);
    streams_.Require("cudaStreamDestroy", stream);
    RequireChosen("cudaStreamDestroy", stream->gpu());
    streams_.End("cudaStreamDestroy", stream);
    stream->Close();
  }
  void WaitFor(int gpu) {
    std::vector<std::pair<cudaStream_t, uint64_t>> points;
    {
      std::lock_guard lock(mutex_);
      const auto add = [&](cudaStream_t stream) {
        if (stream->gpu() == gpu) points.emplace_back(stream, stream->pushed());
      };
      streams_.ForAll(add);
      if (default_[gpu] != nullptr) add(default_[gpu]);
    }
    for (const auto& [stream, pushed] : points) {
      while (stream->done() < pushed) SleepMicroseconds(10);
    }
  }
  void Ended() { __atomic_sub_fetch(&running_, 1, __ATOMIC_ACQ_REL); }

  cudaEvent_t MakeEvent() {
    std::lock_guard lock(mutex_);
    return events_.Add(new CUevent_st(CurrentGpu()));
  }
  cudaEvent_t Find(const char* call, cudaEvent_t event) {
    std::lock_guard lock(mutex_);
    events_.Require(call, event);
    RequireChosen(call, event->gpu());
    return event;
  }
  void Destroy(cudaEvent_t event) {
    std::lock_guard lock(mutex_);
    events_.Require("cudaEventDestroy", event);
    RequireChosen("cudaEventDestroy", event->gpu());
    events_.End("cudaEventDestroy", event);
    event->Record(nullptr);
  }

  // At the end of the program. What there is stays: threads of streams may still look at it.
  void End() {
    if (dtensor::fake_cuda::ForgivesLeaks()) return;
    streams_.RequireNoneLeft();
    events_.RequireNoneLeft();
    for (const cudaStream_t stream : default_) {
      if (stream != nullptr) stream->Close();
    }
    while (__atomic_load_n(&running_, __ATOMIC_ACQUIRE) > 0) SleepMicroseconds(10);
  }

 private:
  cudaStream_t StartStream() {
    __atomic_add_fetch(&running_, 1, __ATOMIC_ACQ_REL);
    return new CUstream_st(CurrentGpu(), ++started_);
  }

  SpinLock mutex_;
  Handles<cudaStream_t> streams_{"stream"};
  Handles<cudaEvent_t> events_{"event"};
  cudaStream_t default_[dtensor::fake_cuda::kMostGpus] = {};
  unsigned started_ = 0;
  int running_ = 0;
};

Runtime& TheRuntime() {
  static Runtime* const runtime = new Runtime;
  struct AtEnd {
    ~AtEnd() { runtime->End(); }
  };
  static const AtEnd at_end;
  return *runtime;
}

}  // namespace

void CUstream_st::Run() {
  while (Operation* const operation = Next()) {
    Acquire(operation);
    Dawdle();
    operation->run();
    delete operation;
    __atomic_add_fetch(&done_, 1, __ATOMIC_RELEASE);
  }
  TheRuntime().Ended();
}

namespace dtensor::fake_cuda {

void Enqueue(cudaStream_t stream, std::function<void()> work) {
  TheRuntime().Find("a launch", stream)->Push(std::move(work));
}

void WaitForGpu(int gpu) { TheRuntime().WaitFor(gpu); }

int GpuOf(cudaStream_t stream) { return TheRuntime().Find("a launch", stream)->gpu(); }

}  // namespace dtensor::fake_cuda

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking) {
    Refuse("cudaStreamCreateWithFlags", "only cudaStreamNonBlocking is faked");
  }
  *stream = TheRuntime().MakeStream();
  return cudaSuccess;
}

// Which of two streams comes first is CUDA's affair; a number out of range is made to fit.
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* gpu) {
  *gpu = dtensor::fake_cuda::GpuOf(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  TheRuntime().Destroy(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Gate* const gate = new Gate;
  TheRuntime().Find("cudaStreamSynchronize", stream)->Push([gate] { gate->Open(); });
  gate->Wait();
  gate->Drop();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  if (flags != 0) return Return(cudaErrorInvalidValue);
  const cudaStream_t waiting = TheRuntime().Find("cudaStreamWaitEvent", stream);
  if (Gate* const gate = TheRuntime().Find("cudaStreamWaitEvent", event)->Last(); gate != nullptr) {
    waiting->Push([gate] {
      gate->Wait();
      gate->Drop();
    });
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (flags != cudaEventDisableTiming) {
    Refuse("cudaEventCreateWithFlags", "only cudaEventDisableTiming is faked");
  }
  *event = TheRuntime().MakeEvent();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return Return(cudaErrorInvalidResourceHandle);
  TheRuntime().Destroy(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const cudaStream_t recorded = TheRuntime().Find("cudaEventRecord", stream);
  if (TheRuntime().Find("cudaEventRecord", event)->gpu() != recorded->gpu()) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  Gate* const gate = new Gate;
  gate->Hold();
  recorded->Push([gate] {
    gate->Open();
    gate->Drop();
  });
  event->Record(gate);  // not before: who waits for it must come behind
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Gate* const gate = TheRuntime().Find("cudaEventQuery", event)->Last();
  if (gate == nullptr) return cudaSuccess;
  const bool is_open = gate->IsOpen();
  gate->Drop();
  if (is_open) return cudaSuccess;
  // Older CUDA leaves that behind, CUDA 13 an error that was there: who asks copes with both.
  return cudaPeekAtLastError() == cudaSuccess ? Return(cudaErrorNotReady) : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Gate* const gate = TheRuntime().Find("cudaEventSynchronize", event)->Last();
  if (gate != nullptr) {
    gate->Wait();
    gate->Drop();
  }
  return cudaSuccess;
}

}  // extern "C"
