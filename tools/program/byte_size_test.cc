#include "dtensor/tools/program/byte_size.h"

#include <utility>

#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

TEST(ByteSizeTest, Reads) {
  for (const auto& [text, bytes] : {std::pair<const char*, int64_t>{"0", 0},
                                    {"4096", 4096},
                                    {"17B", 17},
                                    {"64MiB", 64 << 20},
                                    {"64 MiB", 64 << 20},
                                    {" 1kB ", 1000},
                                    {"1KB", 1000},
                                    {"1KiB", 1024},
                                    {"1kib", 1024},
                                    {"1.5GB", 1500000000},
                                    {"1.50000000000000000000000gb", 1500000000},
                                    {"0.5KiB", 512},
                                    {".5KiB", 512},
                                    {"80GiB", int64_t{80} << 30},
                                    {"2TiB", int64_t{2} << 40},
                                    {"3PB", 3000000000000000},
                                    {"7EiB", int64_t{7} << 60},
                                    {"9EB", 9000000000000000000},
                                    {"1.B", 1},
                                    {"007", 7},
                                    {"0.000000001GB", 1},
                                    {"9223372036854775807", INT64_MAX},
                                    {"0.0EiB", 0}}) {
    EXPECT_THAT(ParseByteSize(text), IsOkAndHolds(bytes)) << text;
  }
}

TEST(ByteSizeTest, SaysWhatIsWanted) {
  for (const auto& [text, why] : {std::pair<const char*, const char*>{"", "is no number"},
                                  {"many", "is no number"},
                                  {"GiB", "is no number"},
                                  {".", "is no number"},
                                  {"1.2.3", "is no number"},
                                  {"+5", "is no number"},
                                  {"-1", "is negative"},
                                  {"-1GiB", "is negative"},
                                  {"10k", "has a unit that is none"},
                                  {"5GiBs", "has a unit"},
                                  {"1e9", "has a unit"},
                                  {"0x10", "has a unit"},
                                  {"1 2", "has a unit"},
                                  {"1,5GB", "has a unit"},
                                  {"0.1KiB", "is no whole number"},
                                  {"0.5", "is no whole number"},
                                  {"1.0000000001GB", "is no whole number"},
                                  {"8EiB", "is more than"},
                                  {"10EB", "is more than"},
                                  {"9223372036854775808", "has too many digits"},
                                  {"99999999999999999999999", "has too many digits"}}) {
    EXPECT_THAT(ParseByteSize(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
        << text;
    EXPECT_THAT(ParseByteSize(text).status().message(), HasSubstr("64MiB")) << text;
  }
}

}  // namespace
}  // namespace dtensor
