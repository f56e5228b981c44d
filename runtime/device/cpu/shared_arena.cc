#include "dtensor/runtime/device/cpu/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/descriptor.h"
#include "dtensor/runtime/device/cpu/memory_left.h"

namespace dtensor {
namespace {

constexpr int64_t kPage = 4096;
#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // Linux 5.14
#endif
#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;       // Linux 6.1
#endif

constexpr absl::string_view kMoreAddresses =
    "raise the limit of addresses (ulimit -v), or leave this process's other worlds first, each of "
    "which has taken as many for every rank of its host";

absl::Status Refused(absl::string_view what, int error, absl::string_view remedy) {
  const std::string text =
      absl::StrCat("shared memory: the system refuses ", what, " (", std::strerror(error), "); ",
                   remedy, ", or set DTENSOR_TRANSPORT=tcp on all ranks to do without");
  return error == EPERM || error == EACCES || error == ENOSYS ? absl::PermissionDeniedError(text)
                                                              : absl::ResourceExhaustedError(text);
}

// Maps the whole file, aligned to a huge page so that it can have such pages. Returns MAP_FAILED,
// with errno, if there are not so many addresses.
void* MapFile(int file, int64_t bytes, int protection) {
  constexpr int64_t kHugePage = PageSource::kHugePage;
  void* const space = mmap(nullptr, bytes + kHugePage, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return space;
  char* const begin = static_cast<char*>(space);
  const int64_t head = -reinterpret_cast<uintptr_t>(begin) % kHugePage;
  if (head > 0) munmap(begin, head);
  if (head < kHugePage) munmap(begin + head + bytes, kHugePage - head);
  void* const mapped =
      mmap(begin + head, bytes, protection, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    munmap(begin + head, bytes);
    errno = error;
    return mapped;
  }
  madvise(mapped, bytes, MADV_HUGEPAGE);
  // Otherwise a forked child would read what its parent writes later, and its tensors would be the
  // parent's.
  madvise(mapped, bytes, MADV_DONTFORK);
  madvise(mapped, bytes, MADV_DONTDUMP);  // a core dump would read each page, even empty ones
  return mapped;
}

uint64_t RandomKey() {
  std::random_device random;
  return uint64_t{random()} << 32 | random() | 1;  // never 0, which is what a new page contains
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedArena>> SharedArena::Create(int64_t bytes, int64_t reserved) {
  std::unique_ptr<SharedArena> made(new SharedArena());
  ArenaName& name = made->name_;
  name.descriptor = OffStandardStreams(memfd_create("dtensor", MFD_CLOEXEC));
  if (name.descriptor < 0) {
    return Refused("memfd_create", errno,
                   "raise the number of open files (ulimit -n), or allow the call where the "
                   "container forbids it");
  }
  void* mapped = MAP_FAILED;
  for (; mapped == MAP_FAILED && bytes >= kLeast; bytes /= 2) {
    name.bytes = bytes;
    mapped = MapFile(name.descriptor, bytes, PROT_READ | PROT_WRITE);
  }
  if (mapped == MAP_FAILED) {
    return Refused("1 GiB of addresses", errno, kMoreAddresses);
  }
  made->data_ = static_cast<char*>(mapped);
  rlimit limit;  // beyond it ftruncate sends a signal
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(name.bytes)) {
    errno = EFBIG;
  } else if (ftruncate(name.descriptor, name.bytes) == 0) {
    errno = 0;
  }
  if (errno != 0) {
    return Refused(absl::StrCat("a file of ", name.bytes, " bytes"), errno,
                   "raise the size that files may have (ulimit -f)");
  }
  if (!made->Touch(made->data_, kPage)) {
    return Refused("a page of it", errno, "raise the limit of memory");
  }
  name.process = getpid();
  name.key = RandomKey();
  std::memcpy(made->data_, &name.key, sizeof(name.key));
  const int64_t first = std::max<int64_t>(reserved, sizeof(name.key));
  const int64_t begin = (first + kHugePage - 1) / kHugePage * kHugePage;
  made->free_.emplace(begin, name.bytes - begin);
  return made;
}

SharedArena::~SharedArena() {
  if (data_ != nullptr) munmap(data_, bytes());
  if (name_.descriptor >= 0) close(name_.descriptor);
}

// Missing memory is reported here, instead of by a signal when it is written.
bool SharedArena::Touch(char* data, int64_t bytes) {
  if (const std::optional<int64_t> left = MemoryLeft(); left && *left < bytes) {
    errno = ENOMEM;
    return false;
  }
  // Most systems give shared memory no huge pages by themselves, but build them from small pages on
  // request. Without them, large moves take a fifth longer. Collapsing skips a huge page that has
  // no small page yet; if no huge pages are available, small ones are used.
  for (int64_t at = 0; at + kHugePage <= bytes; at += kHugePage) {
    if (madvise(data + at, kPage, kPopulateWrite) == 0) madvise(data + at, kHugePage, kCollapse);
  }
  if (madvise(data, bytes, kPopulateWrite) == 0) return true;
  return errno == EINVAL && fallocate(name_.descriptor, 0, data - data_, bytes) == 0;
}

void* SharedArena::Map(int64_t bytes) {
  const int64_t alignment = bytes >= kHugePage ? kHugePage : kPage;
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [begin, size] = *it;
    const int64_t at = (begin + alignment - 1) / alignment * alignment;
    if (at + bytes > begin + size) continue;
    free_.erase(it);
    if (at > begin) free_.emplace(begin, at - begin);
    if (begin + size > at + bytes) free_.emplace(at + bytes, begin + size - at - bytes);
    if (Touch(data_ + at, bytes)) return data_ + at;
    Unmap(data_ + at, bytes);
    return nullptr;
  }
  return nullptr;
}

void SharedArena::Unmap(void* data, int64_t bytes) {
  const int64_t begin = static_cast<char*>(data) - data_;
  fallocate(name_.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, bytes);
  AddFree(begin, bytes);
}

void SharedArena::AddFree(int64_t begin, int64_t bytes) {
  const auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + bytes) {
    bytes += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(begin);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(begin, bytes);
}

absl::StatusOr<ArenaView> ArenaView::Open(const ArenaName& name) {
  const std::string path = absl::StrCat("/proc/", name.process, "/fd/", name.descriptor);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto missing = [&] {
    return absl::NotFoundError(
        absl::StrCat("shared memory: process ", name.process, " has none any more"));
  };
  if (file < 0) {
    if (errno == ENOENT) return missing();
    return Refused(absl::StrCat("a look at ", path), errno,
                   "run all ranks of a host as one user, in one container, with enough open files "
                   "(ulimit -n)");
  }
  struct stat about;
  const bool is_it = fstat(file, &about) == 0 && about.st_size == name.bytes;
  void* const mapped = is_it ? MapFile(file, name.bytes, PROT_READ) : nullptr;
  const int error = errno;
  close(file);
  if (mapped == nullptr) return missing();
  if (mapped == MAP_FAILED) {
    return Refused(absl::StrCat(name.bytes, " addresses"), error, kMoreAddresses);
  }
  ArenaView view;
  view.data_ = static_cast<const char*>(mapped);
  view.bytes_ = name.bytes;
  uint64_t key = 0;
  std::memcpy(&key, mapped, sizeof(key));
  if (key != name.key) return missing();
  return view;
}

ArenaView::~ArenaView() {
  if (data_ != nullptr) munmap(const_cast<char*>(data_), bytes_);
}

ArenaView::ArenaView(ArenaView&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

ArenaView& ArenaView::operator=(ArenaView&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace dtensor
