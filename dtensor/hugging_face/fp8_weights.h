// Weights in FP8, as the folders of DeepSeek-V3 and Qwen3-FP8 have them ("quant_method": "fp8" in
// config.json): a matrix X of F8_E4M3, and X_scale_inv, a number for each of X's blocks.
//
//   value = e4m3 * scale of its block      in f32, as Hugging Face's library dequantizes
#ifndef DTENSOR_HUGGING_FACE_FP8_WEIGHTS_H_
#define DTENSOR_HUGGING_FACE_FP8_WEIGHTS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/hugging_face/quantized_weight.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/io/safetensors/safetensors_folder.h"

namespace dtensor {
namespace internal {

bool IsFp8(const SafetensorsInfo& info);
std::string Fp8ScalesName(absl::string_view name);  // of tensor `name`

// [rows, columns] of a block, which config.json says. Errors: kInvalidArgument, naming the file,
// for one that says nothing of weights in FP8, or that ConfigReader::Fp8Block refuses; those of
// ReadFile.
absl::StatusOr<Dims> ReadFp8Block(const std::string& config_path);

// The folder's tensor `name`. Errors: kInvalidArgument for scales that are missing, not f32, bf16
// or f16, or not one for each block.
absl::StatusOr<QuantizedWeightPtr> FindFp8(const SafetensorsFolder& folder, const std::string& name,
                                           absl::Span<const int64_t> block);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_HUGGING_FACE_FP8_WEIGHTS_H_
