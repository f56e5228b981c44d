// CoreClaim: cores to pin threads to. A core that one world has claimed is given to no other world
// of this process.
#ifndef DTENSOR_RUNTIME_COMM_LOCAL_CORE_CLAIM_H_
#define DTENSOR_RUNTIME_COMM_LOCAL_CORE_CLAIM_H_

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class CoreClaim {
 public:
  // Claims the `n` lowest cores that this thread may run on and that nobody has claimed.
  // Thread-safe. Errors: kResourceExhausted if there are fewer; kUnimplemented if the system cannot
  // pin threads.
  static absl::StatusOr<CoreClaim> Make(int n);
  CoreClaim() = default;  // no cores
  CoreClaim(CoreClaim&& other) noexcept : cores_(std::exchange(other.cores_, {})) {}
  CoreClaim& operator=(CoreClaim&& other) noexcept {
    cores_.swap(other.cores_);
    return *this;
  }
  ~CoreClaim();

  int size() const { return static_cast<int>(cores_.size()); }
  void PinThisThread(int i) const;  // to the i-th core of the claim

 private:
  std::vector<int> cores_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_LOCAL_CORE_CLAIM_H_
