// What Hugging Face's configurations say of rotary embeddings. Members are in an object,
// "rope_scaling" or, in newer files, "rope_parameters"; some are also outside of it.
#ifndef DTENSOR_NN_ROPE_CONFIG_H_
#define DTENSOR_NN_ROPE_CONFIG_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "dtensor/nn/config_reader.h"
#include "dtensor/runtime/core/rope_scaling.h"

namespace dtensor::internal {

// All refuse, by name, what they cannot read (ConfigReader::Refuse).

// "linear", "llama3", "yarn" or none. `rotates_whole_heads`: another partial_rotary_factor is
// refused. `parameters`: the object that newer files have.
inline constexpr absl::string_view kRopeParameters = "rope_parameters";
RopeScaling ReadRopeScaling(ConfigReader& json, bool rotates_whole_heads,
                            absl::string_view parameters = kRopeParameters);
// Of latent attention: what its softmax's scale is multiplied by, squared. Requires: a scaling that
// was read.
double ReadSoftmaxAmplitude(ConfigReader& json, const RopeScaling& scaling);
// How many features of a head are rotated, by partial_rotary_factor; 0: all.
int64_t ReadRotaryDim(ConfigReader& json, double if_missing, int64_t head_dim);
// The base, rope_theta. Requires: a scaling that was read.
double ReadRopeTheta(ConfigReader& json, double if_missing, const RopeScaling& scaling,
                     absl::string_view parameters = kRopeParameters);

// Hugging Face's default for yarn's attention_factor, and for quotients of which it may consist.
double YarnAmplitude(double factor, double scale);

}  // namespace dtensor::internal

#endif  // DTENSOR_NN_ROPE_CONFIG_H_
