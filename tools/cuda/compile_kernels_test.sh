#!/usr/bin/env bash
# compile_kernels_test.sh COMPILE_KERNELS NVCC: what would end on a GPU is refused by name, and leaves no object.
set -uo pipefail
compile_kernels=$PWD/$1 nvcc=$2
[[ -x $nvcc ]] || { echo "there is no nvcc: $nvcc"; exit 1; }
cd "$(mktemp -d)" || exit
fail() { echo "FAILED: $*"; exit 1; }
compile() { "$compile_kernels" "$nvcc" "$1" object.o -std=c++20 --expt-relaxed-constexpr "-gencode=arch=compute_90,code=[sm_90,compute_90]"; }

cat >trap.cu <<'CU'
inline constexpr unsigned kOfHost[2] = {3, 5};
constexpr unsigned Scaled(unsigned x, int i) {
  x *= kOfHost[i];
  return x;
}
__global__ void ScaleKernel(unsigned* out) { out[0] = Scaled(out[0], out[1] & 1); }
CU
compile trap.cu >out 2>&1 && fail "a trap is compiled"
grep "trap.cu: nvcc made a trap" out >/dev/null || fail "it does not say so: $(cat out)"
grep "ScaleKernel" out >/dev/null || fail "it does not name the kernel: $(cat out)"
[[ ! -e object.o ]] || fail "there is an object"

sed 's/kOfHost\[i\]/(i == 0 ? kOfHost0 : kOfHost1)/; s/kOfHost\[2\] = .*/kOfHost0 = 3, kOfHost1 = 5;/' trap.cu >none.cu
compile none.cu || fail "what has no trap is refused"
[[ -s object.o && ! -e object.o.kept ]] || fail "there is no object, or more than that: $(ls)"

echo 'syntax' >broken.cu
compile broken.cu >out 2>&1 && fail "an error is no error"
grep "broken.cu" out >/dev/null || fail "nvcc's words are lost: $(cat out)"
