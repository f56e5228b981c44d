// SharedArena: host memory that other processes of this host can read.
//
// It is a range of addresses over an unnamed file (memfd). Most of it has no memory behind it: Map
// adds pages, and touches them, Unmap removes them. Since the file has no name, nothing is left of
// it when its processes have ended, however they end. A process that may access this one (of the
// same user, in the same container) maps all of it read-only, as an ArenaView. Data at an offset
// here is at the same offset there.
//
// A forked child has neither arenas nor views: it dies (SIGSEGV) if it touches one.
//
// Thread-compatible.
#ifndef DTENSOR_RUNTIME_DEVICE_CPU_SHARED_ARENA_H_
#define DTENSOR_RUNTIME_DEVICE_CPU_SHARED_ARENA_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/cpu/page_source.h"

namespace DTENSOR_EXPORT dtensor {

// What another process needs to find an arena.
struct ArenaName {
  int64_t process = 0;  // its id
  int descriptor = -1;  // of the file, in that process
  int64_t bytes = 0;    // of the range
  uint64_t key = 0;     // a random number, which is the arena's first word
};

class SharedArena final : public PageSource {
 public:
  static constexpr int64_t kLeast = int64_t{1} << 30;  // bytes
  // Makes an arena of `bytes`, or of less, but at least kLeast, if the process may not have so many
  // addresses. The first `reserved` bytes belong to the caller for as long as the arena lives; they
  // are zeros except for the first word. Requires: whole pages. Errors: kResourceExhausted or
  // kPermissionDenied, saying what to raise or allow.
  static absl::StatusOr<std::unique_ptr<SharedArena>> Create(int64_t bytes, int64_t reserved);
  ~SharedArena() override;
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  const ArenaName& name() const { return name_; }
  char* data() const { return data_; }
  int64_t bytes() const { return name_.bytes; }
  bool has(const void* data) const {
    return data_ <= data && data < static_cast<const void*>(data_ + bytes());
  }

  // Also null if the file may not grow, or if the system has no memory.
  void* Map(int64_t bytes) override;
  void Unmap(void* data, int64_t bytes) override;

 private:
  SharedArena() = default;
  bool Touch(char* data, int64_t bytes);
  void AddFree(int64_t begin, int64_t bytes);

  ArenaName name_;
  char* data_ = nullptr;
  std::map<int64_t, int64_t> free_;  // size by offset; no two are adjacent
};

// Another process's arena. Reading memory that was not mapped there yet gives zeros.
class ArenaView {
 public:
  // Errors: kPermissionDenied or kResourceExhausted, saying what to allow or raise; kNotFound if
  // the process has no such arena, for example because it has ended.
  static absl::StatusOr<ArenaView> Open(const ArenaName& name);
  ArenaView() = default;
  ~ArenaView();
  ArenaView(ArenaView&& other) noexcept;
  ArenaView& operator=(ArenaView&& other) noexcept;

  const char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  const char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CPU_SHARED_ARENA_H_
