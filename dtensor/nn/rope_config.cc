#include "dtensor/nn/rope_config.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

namespace dtensor::internal {

double YarnAmplitude(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

namespace {

// A number above 0. If it is missing, it is refused: Hugging Face has no default for it.
double Factor(ConfigReader& json, absl::string_view group, absl::string_view member) {
  const std::string name = absl::StrCat(group, member);
  const double number = json.Number(name, 0);
  if (number == 0) json.Refuse(name, "give a number above 0");
  return number;
}

// Of "llama3".
void ReadTurns(ConfigReader& json, absl::string_view group, RopeScaling& scaling) {
  scaling.low = Factor(json, group, ".low_freq_factor");
  scaling.high = Factor(json, group, ".high_freq_factor");
  scaling.trained = Factor(json, group, ".original_max_position_embeddings");
  if (scaling.low >= scaling.high) {
    json.Refuse(absl::StrCat(group, ".high_freq_factor"), "give more than low_freq_factor");
  }
}

void ReadYarn(ConfigReader& json, absl::string_view group, RopeScaling& scaling) {
  const auto number = [&](absl::string_view member, double if_missing) {
    const double read = json.Number(absl::StrCat(group, member), if_missing);
    return read == 0 ? if_missing : read;  // as there
  };
  scaling.trained = Factor(json, group, ".original_max_position_embeddings");
  scaling.low = number(".beta_slow", 1);
  scaling.high = number(".beta_fast", 32);
  if (scaling.low >= scaling.high) {
    json.Refuse(absl::StrCat(group, ".beta_fast"), "give more than beta_slow");
  }
  const bool whole = json.Flag(absl::StrCat(group, ".truncate"), true);
  scaling.transition = whole ? RopeTransition::kByWholePairs : RopeTransition::kByPairs;
  const double scale = number(".mscale", 0), all = number(".mscale_all_dim", 0);
  const double usual = scale > 0 && all > 0 ? YarnAmplitude(scaling.factor, scale) /
                                                  YarnAmplitude(scaling.factor, all)
                                            : YarnAmplitude(scaling.factor, 1);
  const std::string given = absl::StrCat(group, ".attention_factor");
  scaling.amplitude = json.Has(given) ? Factor(json, group, ".attention_factor") : usual;
  if (!std::isfinite(scaling.amplitude) || scaling.amplitude <= 0) {
    json.Refuse(absl::StrCat(group, ".factor"), "with its mscales it is no amplitude; give less");
  }
}

}  // namespace

RopeScaling ReadRopeScaling(ConfigReader& json, bool rotates_whole_heads,
                            absl::string_view parameters) {
  RopeScaling scaling;
  for (const absl::string_view group : {absl::string_view("rope_scaling"), parameters}) {
    if (!json.HasObject(group)) continue;
    if (rotates_whole_heads) {
      json.Never(absl::StrCat(group, ".partial_rotary_factor"), "models of this type have none");
    }
    const std::string newer = absl::StrCat(group, ".rope_type"),
                      older = absl::StrCat(group, ".type");
    const std::string& name = json.Has(newer) ? newer : older;
    const std::string type = json.Text(name, "default");
    if (type == "default") {
      json.Never(absl::StrCat(group, ".factor"), "say by rope_type how it scales");
      continue;
    }
    scaling.factor = Factor(json, group, ".factor");
    if (type == "linear") continue;
    if (type == "llama3") {
      ReadTurns(json, group, scaling);
    } else if (type == "yarn") {
      ReadYarn(json, group, scaling);
    } else {
      json.Refuse(name, "rotary embeddings are scaled by linear, llama3 or yarn, or not at all");
    }
  }
  return scaling;
}

double ReadSoftmaxAmplitude(ConfigReader& json, const RopeScaling& scaling) {
  double amplitude = 1;
  for (const absl::string_view group : {"rope_scaling", "rope_parameters"}) {
    const std::string name = absl::StrCat(group, ".mscale_all_dim");
    if (!json.HasObject(group) || !json.Has(name)) continue;
    const double all = json.Number(name, 0);
    if (all == 0) continue;
    amplitude = YarnAmplitude(scaling.factor, all);
    if (!std::isfinite(amplitude * amplitude)) json.Refuse(name, "give a smaller number");
  }
  return amplitude;
}

int64_t ReadRotaryDim(ConfigReader& json, double if_missing, int64_t head_dim) {
  absl::string_view name = "partial_rotary_factor";
  for (const absl::string_view inside :
       {"rope_scaling.partial_rotary_factor", "rope_parameters.partial_rotary_factor"}) {
    if (json.Has(inside)) name = inside;
  }
  const double share = json.Number(name, if_missing);
  const auto size = static_cast<int64_t>(static_cast<double>(head_dim) * std::min(share, 1.0));
  if (share > 1 || size < 2) json.Refuse(name, "give a share of a head, with two features or more");
  return size == head_dim ? 0 : size;
}

double ReadRopeTheta(ConfigReader& json, double if_missing, const RopeScaling& scaling,
                     absl::string_view parameters) {
  const std::string inside = absl::StrCat(parameters, ".rope_theta");
  const absl::string_view name = json.Has(inside) ? absl::string_view(inside) : "rope_theta";
  const double theta = json.Number(name, if_missing);
  if (theta == 0) json.Refuse(name, "give a number above 0");
  if (theta <= 1 && scaling.transition != RopeTransition::kByTurns) {
    json.Refuse(name, "yarn tells pairs apart by their frequencies; give a number above 1");
  }
  return theta;
}

}  // namespace dtensor::internal
