// Cores to pin threads to. Those that one world has, no other world of this process gets.
#ifndef DTENSOR_RUNTIME_COMM_LOCAL_CORE_CLAIM_H_
#define DTENSOR_RUNTIME_COMM_LOCAL_CORE_CLAIM_H_

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class CoreClaim {
 public:
  // `n` cores that this thread may run on and that nobody has claimed, lowest first. Thread-safe.
  // Errors: kResourceExhausted where there are fewer; kUnimplemented where the system does not pin.
  static absl::StatusOr<CoreClaim> Make(int n);
  CoreClaim() = default;  // of none
  CoreClaim(CoreClaim&& other) noexcept : cores_(std::exchange(other.cores_, {})) {}
  CoreClaim& operator=(CoreClaim&& other) noexcept {
    cores_.swap(other.cores_);
    return *this;
  }
  ~CoreClaim();

  int size() const { return static_cast<int>(cores_.size()); }
  void PinThisThread(int i) const;  // to the i-th of them

 private:
  std::vector<int> cores_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_LOCAL_CORE_CLAIM_H_
