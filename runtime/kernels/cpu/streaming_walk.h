// The loop over the operands of elementwise kernels, with streaming stores.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_STREAMING_WALK_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_STREAMING_WALK_H_

#include <cstdint>

#include "dtensor/runtime/kernels/arguments/strided_loop.h"
#include "dtensor/runtime/kernels/cpu/streaming.h"
#include "dtensor/runtime/kernels/cpu/strided_walk.h"

namespace dtensor::kernels::cpu {

// Calls fn(in, out, n, stream) for the pieces of all operands (ForEachPiece).
template <int kIn, int kOut, typename Fn>
void ForEachPieceStreaming(const StridedOperands<kIn, kOut>& x, Fn&& fn) {
  bool stream = StreamStores(x.out_bytes, x.in_place);
  for (int o = 1; o < kOut; ++o) stream &= LieAlike(x.out[0], x.out[o]);
  ForEachPiece(x,
               [&](const void* const* in, void* const* out, int64_t n) { fn(in, out, n, stream); });
  FinishStores(stream);
}

}  // namespace dtensor::kernels::cpu

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_STREAMING_WALK_H_
