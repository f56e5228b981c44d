// The checker of traces finds the errors that it is meant to find.
#include "dtensor/tests/tracing/check_trace.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

constexpr char kSound[] = R"json({"traceEvents": [
{"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "rank 1"}},
{"ph": "M", "pid": 1, "tid": 0, "name": "thread_name", "args": {"name": "host"}},
{"ph": "X", "pid": 1, "tid": 0, "cat": "operator",
 "name": "Add", "ts": 5.000, "dur": 4.000, "args": {"path": "a"}},
{"ph": "X", "pid": 1, "tid": 0, "cat": "exchange",
 "name": "all-gather(tp)", "ts": 6.000, "dur": 3.000,
 "args": {"path": "a", "axes": "tp", "collective": "all-gather",
 "calls": 1, "messages": 2, "bytes": 64, "wait_ns": 3}},
{"ph": "b", "pid": 1, "tid": 0, "cat": "exchange",
 "name": "all-reduce(dp)", "ts": 8.500, "id": "1.2",
 "args": {"path": "", "axes": "dp", "collective": "all-reduce",
 "calls": 1, "messages": 1, "bytes": 8, "wait_ns": 0}},
{"ph": "e", "pid": 1, "tid": 0, "cat": "exchange",
 "name": "all-reduce(dp)", "ts": 12.500, "id": "1.2"},
{"ph": "B", "pid": 1, "tid": 0, "cat": "span", "name": "step", "ts": 9.000, "args": {"path": ""}}
]})json";

TEST(CheckChromeTrace, SumsASoundOne) {
  DT_ASSERT_OK_AND_ASSIGN(const auto sums, CheckChromeTrace(kSound));
  ASSERT_EQ(sums.size(), 1u);
  const FileTraffic want = {{{"dp", "all-reduce"}, {1, 1, 8}}, {{"tp", "all-gather"}, {1, 2, 64}}};
  EXPECT_EQ(sums.at(1), want);
}

TEST(CheckChromeTrace, FindsLies) {
  const struct {
    const char *truth, *lie, *found;
  } kLies[] = {
      {"\"dur\": 3.000", "\"dur\": 3.001", "ends after what it began in"},
      {"\"ts\": 6.000", "\"ts\": 4.999", "begins before the one before"},
      {"\"ts\": 12.500", "\"ts\": 8.499", "ends before it begins"},
      {"\"ts\": 5.000", "\"ts\": \"5\"", "ts has another type"},
      {"\"ts\": 5.000", "\"ts\": -5", "ts has another type"},
      {"\"ph\": \"e\"", "\"ph\": \"E\"", "an unknown type"},
      {"\"ts\": 12.500, \"id\": \"1.2\"", "\"ts\": 12.500, \"id\": \"1.3\"", "never began"},
      {", \"dur\": 4.000", "", "no dur"},
      {"\"cat\": \"operator\",", "", "no cat"},
      {"\"name\": \"thread_name\"", "\"name\": \"process_name\"", "a second name"},
      {"\"pid\": 1, \"tid\": 0, \"cat\": \"operator\"",
       "\"pid\": 2, \"tid\": 0, \"cat\": \"operator\"", "process 2 has no name"},
      {"\"bytes\": 64, ", "", "no bytes"},
      {"\"tid\": 0, \"cat\": \"span\"", "\"tid\": 0, \"x\": 1, \"cat\": \"span\"", "a member x"},
      {"]}", "]", "no object"},
  };
  for (const auto& lie : kLies) {
    const std::string text = absl::StrReplaceAll(kSound, {{lie.truth, lie.lie}});
    ASSERT_NE(text, kSound) << lie.truth;
    EXPECT_THAT(CheckChromeTrace(text).status().message(), HasSubstr(lie.found)) << lie.lie;
  }
}

}  // namespace
}  // namespace dtensor
