// How ranks of a fake NCCL communicator connect, both threads of a process and processes of a host:
// by sockets whose names contain the unique id and are in no file system, so that a process that
// dies leaves nothing behind. Compiled without TSan's instrumentation, and uses bare system calls,
// from which TSan infers no order (ordering.h).
#ifndef DTENSOR_TOOLS_CUDA_FAKE_NCCL_LINKS_H_
#define DTENSOR_TOOLS_CUDA_FAKE_NCCL_LINKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dtensor::fake_cuda {

// What a rank says of itself when ranks connect.
struct NcclHello {
  int32_t rank, size, gpu;
  int32_t is_news;  // of the two connections between a pair
};

// A non-blocking connection.
class NcclLink {
 public:
  explicit NcclLink(int fd = -1) : fd_(fd) {}
  // Returns how many bytes were written; 0: none now, or none ever again.
  size_t Write(const void* bytes, size_t size);
  // As Write. `ended`: the other side is closed, and all that it wrote has been read.
  size_t Read(void* bytes, size_t size, bool& ended);
  void Close();

 private:
  int fd_;
};

// One rank's connections to all others: one for data, and one for news, which ranks may send each
// other at any time.
class NcclLinks {
 public:
  // Waits until all ranks of `id` have come, or until `stop` returns true. Returns what is wrong
  // with them, "" if nothing is.
  std::string Meet(const std::string& id, const NcclHello& mine, const std::function<bool()>& stop);
  void Close();

  NcclLink& data(int peer) { return data_[peer]; }
  NcclLink& news(int peer) { return news_[peer]; }

 private:
  bool Connect(const std::string& id, const NcclHello& mine, int peer,
               const std::function<bool()>& stop);
  bool Accept(int listener, const NcclHello& mine, const std::function<bool()>& stop);
  std::string Compare(const NcclHello& mine) const;

  std::vector<NcclLink> data_, news_;
  std::vector<NcclHello> hellos_;
};

// A name that no other process or call creates.
std::string NewNcclId();

}  // namespace dtensor::fake_cuda

#endif  // DTENSOR_TOOLS_CUDA_FAKE_NCCL_LINKS_H_
