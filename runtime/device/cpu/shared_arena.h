// SharedArena: host memory that other processes of this host can read.
//
// A range of addresses over an unnamed file (memfd). Most of it has no memory behind it: pages come
// with Map, which touches them, and go with Unmap. The file has no name, so nothing is left of it
// when its processes have ended, however they end. A process that may look into this one (the same
// user's, in the same container) maps all of it, read-only: ArenaView. What lies at an offset here
// lies at the same offset there.
//
// A child that the process forks has neither arena nor views: it dies (SIGSEGV) where it touches
// one.
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

// By what another process finds an arena.
struct ArenaName {
  int64_t process = 0;  // its id
  int descriptor = -1;  // of the file, in that process
  int64_t bytes = 0;    // of the range
  uint64_t key = 0;     // that the arena's first word has: a number made at random
};

class SharedArena final : public PageSource {
 public:
  static constexpr int64_t kLeast = int64_t{1} << 30;  // bytes
  // Of at most `bytes`; of less, but not less than kLeast, where the process may not have so many
  // addresses. The first `reserved` bytes, zeros but for the first word, are the caller's for as
  // long as it lives. Requires: whole pages. Errors: kResourceExhausted or kPermissionDenied, with
  // what to raise or allow.
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

  // Null as well where the file may not grow, or the system has no memory.
  void* Map(int64_t bytes) override;
  void Unmap(void* data, int64_t bytes) override;

 private:
  SharedArena() = default;
  bool Touch(char* data, int64_t bytes);
  void AddFree(int64_t begin, int64_t bytes);

  ArenaName name_;
  char* data_ = nullptr;
  std::map<int64_t, int64_t> free_;  // bytes by where they begin; no two touch
};

// Another process's arena. Reading what is not there yet gives zeros.
class ArenaView {
 public:
  // Errors: kPermissionDenied or kResourceExhausted, with what to allow or raise; kNotFound where
  // the process has no such arena, because it has ended, say.
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
