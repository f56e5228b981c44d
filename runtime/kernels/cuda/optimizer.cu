#include "dtensor/runtime/kernels/cuda/optimizer.h"

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// Elements that a thread reads and writes together.
constexpr int kTogether = 4;

// Memory whose elements are T, in packs of V.
template <int V, typename T>
__device__ Pack<T, V>& PackAt(void* data, int64_t p) {
  return static_cast<Pack<T, V>*>(data)[p];
}
template <int V, typename T>
__device__ const Pack<T, V>& PackAt(const void* data, int64_t p) {
  return static_cast<const Pack<T, V>*>(data)[p];
}

template <typename C>
__device__ C GradScale(const StepArgs& a) {
  return a.grad_scale == nullptr ? C{1} : *static_cast<const C*>(a.grad_scale);
}

// The exact values of parameters: their masters', or their own.
template <int V, typename T>
__device__ Pack<Compute<T>, V> LoadExact(const StepArgs& a, int64_t p) {
  using C = Compute<T>;
  if (a.master != nullptr) return PackAt<V, C>(a.master, p);
  const Pack<T, V> params = PackAt<V, T>(a.param, p);
  Pack<C, V> exact;
  for (int v = 0; v < V; ++v) exact.at[v] = Widen(params.at[v]);
  return exact;
}
template <int V, typename T>
__device__ void StoreExact(const Pack<Compute<T>, V>& exact, const StepArgs& a, int64_t p) {
  if (a.master != nullptr) PackAt<V, Compute<T>>(a.master, p) = exact;
  Pack<T, V> params;
  for (int v = 0; v < V; ++v) params.at[v] = Round<T>(exact.at[v]);
  PackAt<V, T>(a.param, p) = params;
}

template <int V, typename T, typename G>
__global__ void AdamWKernel(AdamWArgs a) {
  using C = Compute<T>;
  const AdamWFactors& f = a.factors;
  const C grad_scale = GradScale<C>(a.step);
  const C beta1 = static_cast<C>(f.beta1), gain1 = static_cast<C>(1 - f.beta1);
  const C beta2 = static_cast<C>(f.beta2), gain2 = static_cast<C>(1 - f.beta2);
  const C decay = static_cast<C>(f.decay), rate = static_cast<C>(f.rate);
  const C v_scale = static_cast<C>(f.v_scale), eps = static_cast<C>(f.eps);
  ForEachPiece<int64_t>(a.step.n / V, [&](int64_t p) {
    const Pack<G, V> grads = PackAt<V, G>(a.step.grad, p);
    Pack<C, V> params = LoadExact<V, T>(a.step, p);
    Pack<C, V>&m = PackAt<V, C>(a.m, p), &v = PackAt<V, C>(a.v, p);
    Pack<C, V> means = m, squares = v;
    for (int k = 0; k < V; ++k) {
      const C g = grad_scale * Widen(grads.at[k]);
      means.at[k] = fma(beta1, means.at[k], gain1 * g);
      squares.at[k] = fma(beta2, squares.at[k], gain2 * (g * g));
      const C step = rate * means.at[k] / fma(sqrt(squares.at[k]), v_scale, eps);
      // Not (1 - decay) * param: in f32 that factor has lost most of a small decay.
      params.at[k] -= fma(decay, params.at[k], step);
    }
    m = means;
    v = squares;
    StoreExact<V, T>(params, a.step, p);
  });
}

template <int V, typename T, typename G>
__global__ void SgdKernel(SgdArgs a) {
  using C = Compute<T>;
  const SgdFactors& f = a.factors;
  const C grad_scale = GradScale<C>(a.step);
  const C decay = static_cast<C>(f.decay), rate = static_cast<C>(f.rate);
  const C momentum = static_cast<C>(f.momentum);
  const C keep = static_cast<C>(f.keep), gain = static_cast<C>(f.gain);
  ForEachPiece<int64_t>(a.step.n / V, [&](int64_t p) {
    const Pack<G, V> grads = PackAt<V, G>(a.step.grad, p);
    Pack<C, V> params = LoadExact<V, T>(a.step, p), buffer = {};
    if (a.buffer != nullptr && f.keep != 0) buffer = PackAt<V, C>(a.buffer, p);
    for (int k = 0; k < V; ++k) {
      C g = fma(decay, params.at[k], grad_scale * Widen(grads.at[k]));
      if (a.buffer != nullptr) {
        buffer.at[k] = f.keep != 0 ? fma(keep, buffer.at[k], gain * g) : gain * g;
        g = f.nesterov ? fma(momentum, buffer.at[k], g) : buffer.at[k];
      }
      params.at[k] = fma(-rate, g, params.at[k]);
    }
    if (a.buffer != nullptr) PackAt<V, C>(a.buffer, p) = buffer;
    StoreExact<V, T>(params, a.step, p);
  });
}

// Runs with one thread.
template <typename C>
__global__ void ClipScaleKernel(ClipScaleArgs a) {
  const double norm =
      a.factor * sqrt(static_cast<double>(*static_cast<const C*>(a.sum_of_squares)));
  const double share = a.max_norm / (norm + 1e-6);
  const double scale = a.max_norm > 0 && !(share > 1) ? share : 1.0;  // NaN stays
  *static_cast<C*>(a.norm) = static_cast<C>(norm);
  *static_cast<C*>(a.scale) = static_cast<C>(a.factor * scale);
}

// Whether n elements are whole packs, and all memories are aligned for packs.
bool FitPacks(int64_t n, std::initializer_list<const void*> memories) {
  bool fit = n % kTogether == 0;
  for (const void* memory : memories) {
    fit = fit && reinterpret_cast<uintptr_t>(memory) % (kTogether * sizeof(double)) == 0;
  }
  return fit;
}

// Calls launch(together, T{}, G{}): elements at a time, the parameters' and the gradients' type.
template <typename Fn>
absl::Status WithStep(const StepArgs& a, bool packs, Fn launch) {
  return VisitFloat(a.dtype, [&](auto t) {
    using T = decltype(t);
    const auto with = [&](auto together) {
      if (a.grad_dtype == a.dtype) return launch(together, t, t);
      return launch(together, t, Compute<T>());
    };
    if (packs) return with(std::integral_constant<int, kTogether>());
    return with(std::integral_constant<int, 1>());
  });
}

}  // namespace

absl::Status AdamW(Device& device, const char* kernel, const AdamWArgs& args) {
  const StepArgs& step = args.step;
  if (step.n == 0) return device.failure();
  const bool packs = FitPacks(step.n, {step.param, step.grad, step.master, args.m, args.v});
  return WithStep(step, packs, [&](auto together, auto t, auto g) {
    return Launch(device, kernel, BlocksFor(step.n / together), kThreads,
                  AdamWKernel<together, decltype(t), decltype(g)>, args);
  });
}

absl::Status Sgd(Device& device, const char* kernel, const SgdArgs& args) {
  const StepArgs& step = args.step;
  if (step.n == 0) return device.failure();
  const bool packs = FitPacks(step.n, {step.param, step.grad, step.master, args.buffer});
  return WithStep(step, packs, [&](auto together, auto t, auto g) {
    return Launch(device, kernel, BlocksFor(step.n / together), kThreads,
                  SgdKernel<together, decltype(t), decltype(g)>, args);
  });
}

absl::Status ClipScale(Device& device, const char* kernel, const ClipScaleArgs& args) {
  if (args.dtype == DType::kF64) {
    return Launch(device, kernel, 1, 1, ClipScaleKernel<double>, args);
  }
  return Launch(device, kernel, 1, 1, ClipScaleKernel<float>, args);
}

}  // namespace dtensor::kernels::cuda
