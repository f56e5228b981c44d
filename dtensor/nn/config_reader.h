// ConfigReader: reads the members of a configuration of a model or an adapter, a JSON object as
// Hugging Face writes it.
#ifndef DTENSOR_NN_CONFIG_READER_H_
#define DTENSOR_NN_CONFIG_READER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/nn/gelu_mlp.h"

namespace dtensor::internal {

// A member that is missing or null has the default that the caller gives. This should be the
// default of Hugging Face's class, which may omit such members when it writes. Only the first error
// is kept, and values that are read after it are meaningless. So read a configuration from top to
// bottom, and check status() once at the end.
//
//   DT_ASSIGN_OR_RETURN(ConfigReader json, ConfigReader::Parse("Gpt2Config", text));
//   json.OnlyModel("gpt2");
//   config.dim = json.Size("n_embd", 768);
//   json.OnlyFlag("add_cross_attention", false, "there is no encoder to attend to");
//   DT_RETURN_IF_ERROR(json.status());
//
// Members that are never read are ignored. A member of a nested object is named by all names:
// "rope_parameters.rope_theta", or "rope_parameters.full_attention.rope_theta"; of objects that lie
// deeper none is kept.
class ConfigReader {
 public:
  // The limit of sizes. A tensor whose shape is two such sizes is still possible.
  static constexpr int64_t kMaxSize = int64_t{1} << 27;
  // The limit on the number of layers: each is created, even if nothing gets memory.
  static constexpr int64_t kMaxLayers = 4096;
  // The limit on the number of experts: each has names of its own in checkpoints.
  static constexpr int64_t kMaxExperts = 4096;

  // `reader` begins the text of errors. Errors: kInvalidArgument for text that is not a JSON
  // object, for one with a duplicate member, and for one that is nested more than 32 deep.
  static absl::StatusOr<ConfigReader> Parse(absl::string_view reader, absl::string_view text);

  // The limit on the features of one head, which are multiplied by the number of heads.
  static constexpr int64_t kMaxHeadDim = int64_t{1} << 20;

  // A whole number from 1 to `most`.
  int64_t Size(absl::string_view name, int64_t if_missing, int64_t most = kMaxSize);
  int64_t Count(absl::string_view name, int64_t if_missing);  // whole, from 0 to kMaxSize
  // A finite number >= 0.
  double Number(absl::string_view name, double if_missing);
  double Probability(absl::string_view name, double if_missing);  // 0 <= p < 1
  bool Flag(absl::string_view name, bool if_missing);
  std::string Text(absl::string_view name, absl::string_view if_missing);
  // A list of whole numbers from 0 to size - 1. If it is missing, it is empty.
  std::vector<int64_t> Indices(absl::string_view name, int64_t size);
  // A list of texts. If it is missing, it is empty.
  std::vector<std::string> Texts(absl::string_view name);
  // The number of an object's members.
  int64_t Members(absl::string_view name, int64_t if_missing);
  // A name of gelu_mlp.h.
  GeluForm Gelu(absl::string_view name, absl::string_view if_missing);
  bool Has(absl::string_view name) const;     // it exists and is not null
  bool IsNull(absl::string_view name) const;  // it exists and is null
  bool HasObject(absl::string_view name);     // as Has; refuses a value that is not an object

  // Refuses a configuration of another model type, or with quantized weights that Fp8Block refuses,
  // but for those of a gpt_oss in MXFP4; one without a type is accepted. Call this first, since
  // another model's members have other meanings.
  void OnlyModel(absl::string_view type);
  // [rows, columns] of the blocks in which the files' weights are quantized to FP8; empty: weights
  // are not quantized. Refuses a quantization_config of other weights.
  std::vector<int64_t> Fp8Block();
  // Refuse what the library does not implement: any value of the member but `only`, which is also
  // what a missing member means. `why` is a clause.
  void OnlyFlag(absl::string_view name, bool only, absl::string_view why);
  void OnlyText(absl::string_view name, absl::string_view only, absl::string_view why);
  void Never(absl::string_view name, absl::string_view why);      // any value but null
  void NoMembers(absl::string_view name, absl::string_view why);  // an object with members, or none
  // Any value but these: texts, or "true" and "false".
  void OnlyOneOf(absl::string_view name, absl::Span<const absl::string_view> values,
                 absl::string_view why);
  // The same, with the caller's own text.
  void Refuse(absl::string_view name, absl::string_view why);

  const absl::Status& status() const { return status_; }

 private:
  bool HasMxfp4();
  friend class ConfigParser;
  struct Object {};  // its members have entries of their own
  struct List {
    std::vector<int64_t> numbers;
    std::vector<std::string> texts;
    bool has_others = false;  // elements that are neither whole numbers nor texts
  };
  // Numbers that are whole and fit are int64_t.
  using Value = std::variant<std::nullptr_t, bool, int64_t, double, std::string, Object, List>;

  explicit ConfigReader(absl::string_view reader) : reader_(reader) {}
  const Value* Find(absl::string_view name) const;  // null: missing, or null
  static std::string TextOf(const Value& value);
  // Reads a member of one type.
  template <typename T>
  T Get(absl::string_view name, T if_missing, absl::string_view wanted);

  std::string reader_;
  std::map<std::string, Value, std::less<>> members_;
  absl::Status status_;
};

// Checks a model's sizes, given with their names. Errors: kInvalidArgument, beginning with `model`,
// for a size below 1, and for a divisor that does not divide.
using NamedSize = std::pair<absl::string_view, int64_t>;
absl::Status CheckSizes(absl::string_view model, absl::Span<const NamedSize> sizes);
absl::Status CheckDivides(absl::string_view model, NamedSize divisor, NamedSize size);

}  // namespace dtensor::internal

#endif  // DTENSOR_NN_CONFIG_READER_H_
