// Computes which attention weights dropout keeps, row by row. Compiled once for each instruction
// set: include after hwy/foreach_target.h.
#if defined(DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_DROPOUT_INL_H_
#undef DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_DROPOUT_INL_H_
#else
#define DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_DROPOUT_INL_H_
#endif

#include <array>
#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/kernels/cpu/attention_block.h"
#include "dtensor/runtime/kernels/cpu/attention_scratch.h"
// After highway_targets.h.
#include "dtensor/runtime/kernels/cpu/attention_panels-inl.h"
#include "dtensor/runtime/kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

// One Philox block covers a group of four neighbouring key positions, so a row needs one for each
// group that overlaps the block of keys.
template <typename T>
class KeyDropout {
 public:
  KeyDropout(const AttentionShape& shape, const DropoutScratch<T>& scratch)
      : mask_(shape.dropout), scratch_(scratch) {}

  bool active() const { return mask_ != nullptr; }

  // Sets the block of keys [key, key + count); spare keys that complete a vector are in the first
  // group.
  void SetKeys(int64_t key, int64_t count) {
    int64_t groups = 0;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t position = mask_->keys[key + i], group = position / 4;
      if (groups == 0 || scratch_.groups[groups - 1] != group) scratch_.groups[groups++] = group;
      scratch_.places[i] = static_cast<int32_t>(4 * (groups - 1) + position % 4);
    }
    for (int64_t i = count; i < RoundUp(count, kAttentionPad); ++i) scratch_.places[i] = 0;
    for (int64_t i = groups; i < RoundUp(groups, kAttentionPad); ++i) scratch_.groups[i] = 0;
  }

  // For the keys [begin, end) of the block, at [begin]...: the factors of the row's weights, 0 or 1
  // / (1 - rate), up to the end of a vector. Valid until the next call.
  const T* FactorsOf(int64_t batch, int64_t head, int64_t row, int64_t begin, int64_t end) {
    const int64_t first = scratch_.places[begin] / 4, last = scratch_.places[end - 1] / 4;
    MakeWords(mask_->batches[batch], mask_->heads[head], mask_->queries[row], first, last + 1);
    const T scale = static_cast<T>(mask_->scale);
#if HWY_TARGET != HWY_SCALAR
    if constexpr (std::is_same_v<T, float>) {
      const hn::ScalableTag<T> d;
      const hn::RebindToUnsigned<decltype(d)> du;
      const hn::RebindToSigned<decltype(d)> di;
      const auto scales = hn::Set(d, scale);
      const auto least = hn::Set(di, static_cast<int32_t>(mask_->threshold));
      const auto* const words = reinterpret_cast<const int32_t*>(scratch_.words);
      for (int64_t i = begin; i < end; i += static_cast<int64_t>(hn::Lanes(d))) {
        const auto word = hn::GatherIndex(di, words, hn::LoadU(di, scratch_.places + i));
        const auto number = hn::BitCast(di, hn::ShiftRight<8>(hn::BitCast(du, word)));
        const auto dropped = hn::RebindMask(d, hn::Lt(number, least));
        hn::StoreU(hn::IfThenZeroElse(dropped, scales), d, scratch_.factors + i);
      }
      return scratch_.factors;
    }
#endif
    for (int64_t i = begin; i < RoundUp(end, kAttentionPad); ++i) {
      const uint32_t number = scratch_.words[scratch_.places[i]] >> 8;
      scratch_.factors[i] = number >= mask_->threshold ? scale : T{0};
    }
    return scratch_.factors;
  }

 private:
  // Makes the random words of the groups [first, last), at words + 4 * group.
  void MakeWords(uint32_t batch, uint32_t head, uint32_t query, int64_t first, int64_t last) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
    const std::array<uint32_t, 2> key = {static_cast<uint32_t>(mask_->seed),
                                         static_cast<uint32_t>(mask_->seed >> 32)};
    for (int64_t i = first; i < last; ++i) {
      const auto words = Philox({scratch_.groups[i], query, head, batch}, key);
      for (int j = 0; j < 4; ++j) scratch_.words[4 * i + j] = words[j];
    }
#else
    const hn::ScalableTag<uint32_t> d;
    const auto queries = hn::Set(d, query), heads = hn::Set(d, head), batches = hn::Set(d, batch);
    for (int64_t i = first; i < last; i += static_cast<int64_t>(hn::Lanes(d))) {
      PhiloxVector(d, hn::LoadU(d, scratch_.groups + i), queries, heads, batches, mask_->seed,
                   scratch_.words + 4 * i);
    }
#endif
  }

  const DropoutMask* mask_;
  const DropoutScratch<T>& scratch_;
};

// Rows [row, row + rows) of a query head against the block of keys. Their scores lie in panels of
// `panel_rows` rows.
template <typename T>
struct StripDropout {
  KeyDropout<T>* keys;
  int64_t batch, head, row, rows;

  const T* FactorsOf(int64_t i, int64_t begin, int64_t end) const {
    return keys->FactorsOf(batch, head, row + i, begin, end);
  }
};

// Multiplies weights by their factors, for keys [begin, end).
template <typename T>
HWY_NOINLINE void DropWeights(const StripDropout<T>& dropout, int64_t begin, int64_t end,
                              int64_t panel_rows, T* weights) {
  const hn::ScalableTag<T> d;
  constexpr int64_t P = kPanel<T>;
  for (int64_t i = 0; i < dropout.rows && begin < end; ++i) {
    const T* factors = dropout.FactorsOf(i, begin, end);
    for (int64_t key = begin; key < end; key += kLanes<T>) {
      T* const p = weights + (key / P * panel_rows + i) * P + key % P;
      hn::Store(hn::Mul(hn::Load(d, p), hn::LoadU(d, factors + key)), d, p);
    }
  }
}

// P and dS, computed without dropout, become z P and P * (z dP - delta); dS + P delta is P dP.
template <typename T>
HWY_NOINLINE void DropGradients(const StripDropout<T>& dropout, int64_t begin, int64_t end,
                                int64_t panel_rows, const T* delta, T* weights, T* gradients) {
  const hn::ScalableTag<T> d;
  constexpr int64_t P = kPanel<T>;
  for (int64_t i = 0; i < dropout.rows && begin < end; ++i) {
    const T* factors = dropout.FactorsOf(i, begin, end);
    for (int64_t key = begin; key < end; key += kLanes<T>) {
      const int64_t at = (key / P * panel_rows + i) * P + key % P;
      const auto p = hn::Load(d, weights + at), z = hn::LoadU(d, factors + key);
      const auto of_delta = hn::Mul(p, hn::Set(d, delta[i]));
      const auto of_dp = hn::Add(hn::Load(d, gradients + at), of_delta);
      hn::Store(hn::MulSub(z, of_dp, of_delta), d, gradients + at);
      hn::Store(hn::Mul(z, p), d, weights + at);
    }
  }
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_DROPOUT_INL_H_
