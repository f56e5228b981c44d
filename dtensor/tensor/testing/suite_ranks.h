// The ranks that conformance suites run on: threads, or, where dtrun or mpirun has started the
// test, the processes that they started. One binary, one text:
//
//   const auto ranks =
//       OnSuiteRanks(4, [](Context& context) -> absl::StatusOr<std::vector<double>> {
//     ...
//   });
//   DT_ASSERT_OK(ranks);
//   EXPECT_THAT((*ranks)[3], ElementsAre(...));
//
// Every process gets what each rank returned, by rank, and makes the same assertions of it. Worlds
// are kept from function to function, one of each size; a function has Contexts of its own.
//
//   DTENSOR_SUITE_RANKS=N        threads: worlds of other sizes, but for 1, are left out
//   DTENSOR_SUITE_DEVICE=cuda    on GPUs: threads share those there are, unless a test names a
//                                device; each process has its own
//   DTENSOR_SUITE_DIGESTS=DIR    DIR/RANK gets a line for each test case, with the digest of all
//                                that ranks returned, bit by bit: the same from threads and
//                                processes; and DIR/RANK.way says what exchanges went by
#ifndef DTENSOR_TENSOR_TESTING_SUITE_RANKS_H_
#define DTENSOR_TENSOR_TESTING_SUITE_RANKS_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/layout/digest.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/testing/value_bytes.h"

namespace dtensor {

inline auto ValueFields(CommunicatorTraffic& t) { return std::tie(t.calls, t.messages, t.bytes); }

// Whether there are n ranks in this run of the suite; suites skip what needs others. As processes:
// as many as were started, where a test names no device, or 1, which each process has for itself.
bool SuiteHasRanks(int n, const RunOptions& options = {});

// Calls fn on each of n ranks, and returns what each returned. Errors: kUnimplemented where
// !SuiteHasRanks(n, options); as RunRanks. What fn fails on some ranks fails the world, which is
// made anew if its ranks are threads.
using BytesFunction = std::function<absl::StatusOr<std::string>(Context&)>;
absl::StatusOr<std::vector<std::string>> SuiteBytes(int n, const BytesFunction& fn,
                                                    const RunOptions& options);

// The same of any type that value_bytes.h knows.
template <typename Fn>
auto OnSuiteRanks(int n, const Fn& fn, const RunOptions& options = {})
    -> absl::StatusOr<std::vector<typename std::invoke_result_t<Fn, Context&>::value_type>> {
  using T = typename std::invoke_result_t<Fn, Context&>::value_type;
  auto bytes = SuiteBytes(
      n,
      [&](Context& context) -> absl::StatusOr<std::string> {
        absl::StatusOr<T> value = fn(context);
        if (!value.ok()) return value.status();
        ValueWriter writer;
        writer(*value);
        return std::move(writer).bytes();
      },
      options);
  if (!bytes.ok()) return bytes.status();
  std::vector<T> values(bytes->size());
  for (size_t rank = 0; rank < values.size(); ++rank) {
    ValueReader reader((*bytes)[rank]);
    reader(values[rank]);
    if (!reader.ok()) return absl::InternalError("what a rank returned was cut off on its way");
  }
  return values;
}

// Adds the elements' bits, row-major. Synchronizes.
absl::Status AddElements(const Tensor& tensor, Digest& digest);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_TESTING_SUITE_RANKS_H_
