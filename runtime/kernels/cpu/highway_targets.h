// Included before Highway wherever kernels are vectorized: which instruction sets they are compiled
// for.
//
// Plain x86-64, SSE4, AVX2 and AVX-512. SSSE3 and the second AVX-512 set (AVX3_DL) bring nothing to
// loops of floats, and each set costs compile time.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_HIGHWAY_TARGETS_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_HIGHWAY_TARGETS_H_

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#endif

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_HIGHWAY_TARGETS_H_
