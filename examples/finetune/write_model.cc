// write_model FOLDER [TYPE]: writes a tiny LLaMA (or Mistral and so on) with random weights in
// Hugging Face's format, with a tokenizer of bytes and a few merges.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "dtensor/hugging_face/save.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/context.h"
#include "nlohmann/json.hpp"

namespace dtensor::finetune {
namespace {

using nlohmann::json;

constexpr char kConfig[] = R"({
  "model_type": "%s", "torch_dtype": "float32",
  "vocab_size": 272, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
  "rope_theta": 10000.0, "rms_norm_eps": 1e-05, "tie_word_embeddings": true,
  "bos_token_id": 256, "eos_token_id": 256
}
)";

// How GPT-2 writes a byte: as the character with that number, if it is printable.
std::string Spelled(int byte) {
  const auto is_seen = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  };
  int character = byte;
  if (!is_seen(byte)) {
    character = 256;
    for (int b = 0; b < byte; ++b) character += is_seen(b) ? 0 : 1;
  }
  if (character < 0x80) return {static_cast<char>(character)};
  return {static_cast<char>(0xc0 | (character >> 6)), static_cast<char>(0x80 | (character & 0x3f))};
}

std::string TokenizerText() {
  json vocabulary = json::object(), merges = json::array();
  for (int byte = 0; byte < 256; ++byte) vocabulary[Spelled(byte)] = byte;
  int64_t next = 257;
  const std::string space = Spelled(' ');
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"t", "h"},    {"th", "e"}, {space, "the"}, {"i", "n"},      {space, "a"},
      {space, "in"}, {"in", "e"}, {"l", "ine"},   {space, "line"}, {"e", "g"}};
  for (const auto& [first, second] : pairs) {
    merges.push_back(absl::StrCat(first, " ", second));
    vocabulary[absl::StrCat(first, second)] = next++;
  }
  return json{{"added_tokens", {{{"id", 256}, {"content", "<|end|>"}, {"special", true}}}},
              {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
              {"decoder", {{"type", "ByteLevel"}}},
              {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}}
      .dump(1);
}

absl::Status Write(Context& context, const std::string& folder, absl::string_view type) {
  const std::string config = absl::StrReplaceAll(kConfig, {{"%s", type}});
  DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, ModelFromJson(config));
  DT_RETURN_IF_ERROR(model->Materialize(context, DeviceMesh(), /*seed=*/3));
  return SaveHuggingFace(*model, folder,
                         {.config = config, .others = {{"tokenizer.json", TokenizerText()}}});
}

}  // namespace
}  // namespace dtensor::finetune

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) return 2;
  const absl::Status status = dtensor::RunRanks(1, [&](dtensor::Context& context) {
    return dtensor::finetune::Write(context, argv[1], argc == 3 ? argv[2] : "llama");
  });
  if (!status.ok()) std::fprintf(stderr, "write_model: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
