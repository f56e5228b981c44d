// Weights in MXFP4, as OpenAI's folders of GPT-OSS have them ("quant_method": "mxfp4" in
// config.json). A stack of matrices X [experts, in, out] is stored transposed, in blocks of 32
// elements along `in`:
//
//   X_blocks  [experts, out, in / 32, 16]  U8: two elements of 4 bits (E2M1), the first one in the
//                                          lower bits
//   X_scales  [experts, out, in / 32]      U8 (E8M0): 2^(byte - 127); 255 is NaN
//   value = e2m1 * scale
//
// The formats are those of the Open Compute Project, "OCP Microscaling Formats (MX) Specification"
// (2023), sections 5.3.3 and 5.4.1.
#ifndef DTENSOR_HUGGING_FACE_MXFP4_WEIGHTS_H_
#define DTENSOR_HUGGING_FACE_MXFP4_WEIGHTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/hugging_face/quantized_weight.h"
#include "dtensor/runtime/io/safetensors/safetensors_folder.h"

namespace dtensor {
namespace internal {

// Names of the files' tensors for weight `name`.
std::string Mxfp4BlocksName(absl::string_view name);
std::string Mxfp4ScalesName(absl::string_view name);

// The folder's weight `name`, which has blocks there. Errors: kInvalidArgument for blocks and
// scales that are not as above, and scales that are missing.
absl::StatusOr<QuantizedWeightPtr> FindMxfp4(const SafetensorsFolder& folder,
                                             const std::string& name);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_HUGGING_FACE_MXFP4_WEIGHTS_H_
