// Proxy: the network between the ranks of a world, as a test sees it: every connection passes
// through it, and it can cut a rank off.
//
// Ranks are told an address of the proxy's as rank 0's. In the list that says where ranks listen
// for data, which passes through the proxy, it puts addresses of its own as well.
#ifndef DTENSOR_TESTS_PROCESSES_PROXY_H_
#define DTENSOR_TESTS_PROCESSES_PROXY_H_

#include <atomic>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/runtime/net/socket.h"

namespace dtensor::processes {

class Proxy {
 public:
  // Of a world of `size`, whose rank 0 listens at `rank0`.
  Proxy(int size, const HostPort& rank0);
  ~Proxy();

  // Where `rank`, which is not 0, finds rank 0.
  HostPort AddressFor(int rank) const { return addresses_[rank]; }

  // From now on nothing reaches the rank, or comes from it. kSilent: nobody is told; kClosed: its
  // connections close.
  enum class Cut { kSilent, kClosed };
  void CutOff(int rank, Cut how);

 private:
  // Leads who calls it to `target`.
  struct Door {
    Socket listener;
    HostPort target;
    int caller, callee;
    bool is_control;
  };
  struct Pipe;

  HostPort Open(const HostPort& target, int caller, int callee, bool is_control);
  void Run();
  void Accept();
  void Move();
  void Rewrite(Pipe& pipe, std::string& bytes);

  const int size_;
  std::vector<HostPort> addresses_;
  std::mutex mutex_;
  std::list<Door> doors_;
  std::list<Pipe> pipes_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace dtensor::processes

#endif  // DTENSOR_TESTS_PROCESSES_PROXY_H_
