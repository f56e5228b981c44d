#include "dtensor/tools/program/command_line.h"

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A program with two commands.
struct Program {
  Program() {
    CLI::App* const bake = app.add_subcommand("bake", "a cake");
    bake->add_option("--oven-heat", heat, "in degrees");
    bake->add_option("--dough", dough, "what kind")->type_name("yeast|sponge");
    bake->add_option("--memory", bytes, "of the cook")->type_name("BYTES");
    bake->add_flag("--json", json, "print JSON");
    app.add_subcommand("eat", "it");
    app.require_subcommand(1);
  }

  std::optional<int> Parse(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "cook");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int argc = static_cast<int>(argv.size());
    const auto status = launches ? ParseCommandLine(app, argc, argv.data(), /*speaks=*/true)
                                 : ParseCommandLine(app, argc, argv.data());
    out = testing::internal::GetCapturedStdout();
    err = testing::internal::GetCapturedStderr();
    return status;
  }

  CLI::App app{"Cooks.", "cook"};
  int64_t heat = 0, bytes = 0;
  std::string dough, out, err;
  bool json = false, launches = false;
};

TEST(CommandLineTest, TakesBothSpellingsOfFlags) {
  for (const char* flag : {"--oven-heat", "--oven_heat"}) {
    Program cook;
    EXPECT_EQ(cook.Parse({"bake", flag, "180"}), std::nullopt) << cook.err;
    EXPECT_EQ(cook.heat, 180);
  }
  Program cook;
  EXPECT_EQ(cook.Parse({"bake", "--oven_heat=200", "--dough=yeast", "--memory=1.5kB"}),
            std::nullopt);
  EXPECT_EQ(cook.heat, 200);
  EXPECT_EQ(cook.dough, "yeast");
  EXPECT_EQ(cook.bytes, 1500);
}

// The environment of one of two ranks that torchrun has started.
class AsRank {
 public:
  explicit AsRank(const char* rank) {
    setenv("RANK", rank, 1);
    setenv("WORLD_SIZE", "2", 1);
  }
  ~AsRank() {
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
  }
};

TEST(CommandLineTest, OneOfTheRanksPrintsAndALauncherAlways) {
  for (const bool launches : {false, true}) {
    const AsRank rank("1");
    Program refused, helped;
    refused.launches = helped.launches = launches;
    EXPECT_EQ(refused.Parse({"bake", "--bogus"}), 2);
    EXPECT_EQ(!refused.err.empty(), launches) << refused.err;
    EXPECT_EQ(helped.Parse({"--help"}), 0);
    EXPECT_EQ(!helped.out.empty(), launches) << helped.out;
  }
  const AsRank rank("0");
  Program cook;
  EXPECT_EQ(cook.Parse({"bake", "--bogus"}), 2);
  EXPECT_THAT(cook.err, HasSubstr("there is no flag --bogus"));
}

TEST(CommandLineTest, RefusesInOneLine) {
  const auto refusal = [](std::vector<std::string> arguments) {
    Program cook;
    EXPECT_EQ(cook.Parse(std::move(arguments)), 2);
    EXPECT_EQ(cook.out, "");
    EXPECT_EQ(cook.err.find('\n'), cook.err.size() - 1) << cook.err;
    return cook.err;
  };
  EXPECT_THAT(refusal({"bake", "--dough", "yeats"}),
              HasSubstr("cook bake: --dough: there is no \"yeats\"; did you mean yeast?; take "
                        "yeast or sponge"));
  EXPECT_THAT(refusal({"bake", "--dough", "concrete"}), Not(HasSubstr("did you mean")));
  EXPECT_THAT(refusal({"bake", "--memory", "10k"}), HasSubstr("--memory: \"10k\" has a unit"));
  EXPECT_THAT(refusal({"bake", "--oven-heat", "hot"}), HasSubstr("is no whole number"));
  EXPECT_THAT(refusal({"bake", "--oven-hat", "1"}), HasSubstr("did you mean --oven-heat?"));
  EXPECT_THAT(refusal({"bale"}), HasSubstr("did you mean bake?"));
  EXPECT_THAT(refusal({"help", "bale"}), HasSubstr("did you mean bake?"));
  EXPECT_THAT(refusal({}), HasSubstr("no command is given"));
  EXPECT_THAT(refusal({"completion"}), HasSubstr("shell is required"));
  EXPECT_THAT(refusal({"completion", "zhs"}), HasSubstr("did you mean zsh?"));
}

TEST(CommandLineTest, HelpIsACommand) {
  Program asked, flag;
  EXPECT_EQ(asked.Parse({"help", "bake"}), 0);
  EXPECT_EQ(flag.Parse({"bake", "--help"}), 0);
  EXPECT_EQ(asked.out, flag.out);
  EXPECT_THAT(asked.out, AllOf(HasSubstr("--oven-heat"), HasSubstr("yeast|sponge")));
  Program whole;
  EXPECT_EQ(whole.Parse({"help"}), 0);
  EXPECT_THAT(whole.out, AllOf(HasSubstr("Cooks."), HasSubstr("bake"), HasSubstr("completion")));
  Program version;
  EXPECT_EQ(version.Parse({"--version"}), 0);
  EXPECT_THAT(version.out, StartsWith("cook "));
}

nlohmann::json ErrorOf(const std::string& out) {
  const auto json = nlohmann::json::parse(out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object()) << out;
  return json.is_object() ? json["error"] : json;
}

TEST(CommandLineTest, ErrorsAreJsonWhereThatIsAsked) {
  Program cook;
  EXPECT_EQ(cook.Parse({"bake", "--dough", "b\xff\n", "--json"}), 2);
  EXPECT_THAT(cook.err, StartsWith("cook bake: --dough: there is no "));
  nlohmann::json error = ErrorOf(cook.out);
  EXPECT_EQ(error["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(error["command"], "cook bake");
  EXPECT_EQ(error["flag"], "--dough");
  EXPECT_THAT(error["message"], HasSubstr("take yeast or sponge"));
  Program unknown;
  EXPECT_EQ(unknown.Parse({"bake", "--json", "--colour"}), 2);
  error = ErrorOf(unknown.out);
  EXPECT_THAT(error["message"], HasSubstr("there is no flag --colour"));
  EXPECT_FALSE(error.contains("flag"));
  Program none;
  EXPECT_EQ(none.Parse({"--json", "bkae"}), 2);
  EXPECT_EQ(ErrorOf(none.out)["command"], "cook");
}

TEST(CommandLineTest, ReportsWhatIsFoundOutLater) {
  for (const bool json : {false, true}) {
    Program cook;
    std::vector<std::string> arguments = {"bake"};
    if (json) arguments.emplace_back("--json");
    ASSERT_EQ(cook.Parse(arguments), std::nullopt);
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    EXPECT_EQ(RunGuarded(cook.app, []() -> int { throw std::runtime_error("burnt"); }), 1);
    const std::string out = testing::internal::GetCapturedStdout();
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "cook bake: burnt\n");
    if (json) {
      EXPECT_EQ(ErrorOf(out)["code"], "INTERNAL");
    } else {
      EXPECT_EQ(out, "");
    }
  }
}

// A program that starts another one.
struct Starter {
  Starter() {
    app.add_option("-n,--num-ranks", ranks, "how many");
    app.add_option("--address", address, "where");
    app.add_option("--some", some, "of a range")->check(CLI::Range(1, 100));
  }

  std::optional<int> Parse(std::vector<std::string> words) {
    words.insert(words.begin(), "start");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    testing::internal::CaptureStderr();
    const auto status = ParseLauncherLine(app, static_cast<int>(argv.size()), argv.data(), command);
    err = testing::internal::GetCapturedStderr();
    return status;
  }

  CLI::App app{"Starts.", "start"};
  int ranks = 1, some = 1;
  std::string address, err;
  std::vector<std::string> command;
};

TEST(CommandLineTest, LeavesAPassedOnCommandLineAsItIs) {
  for (const std::vector<std::string>& own :
       {std::vector<std::string>{"--num_ranks", "3", "--address", "a_b"},
        {"--num_ranks=3", "--address=a_b"},
        {"-n", "3", "--address", "a_b"},
        {"-n3", "--address", "a_b"}}) {
    Starter start;
    std::vector<std::string> words = own;
    words.insert(words.end(),
                 {"other_name", "--flag_a", "--flag_b=1", "[a,b]", "[]", "--", "-n", "5"});
    ASSERT_EQ(start.Parse(words), std::nullopt) << start.err;
    EXPECT_EQ(start.ranks, 3);
    EXPECT_EQ(start.address, "a_b");
    EXPECT_THAT(start.command, ElementsAre("other_name", "--flag_a", "--flag_b=1", "[a,b]", "[]",
                                           "--", "-n", "5"));
  }
  Starter marked;
  ASSERT_EQ(marked.Parse({"-n", "3", "--", "--num-ranks", "5", "--"}), std::nullopt) << marked.err;
  EXPECT_EQ(marked.ranks, 3);
  EXPECT_THAT(marked.command, ElementsAre("--num-ranks", "5", "--"));
}

// What else is asked of a number does not let CLI11 read it.
TEST(CommandLineTest, ANumberOfARangeIsDecimal) {
  Starter start;
  ASSERT_EQ(start.Parse({"--some", "010", "program"}), std::nullopt) << start.err;
  EXPECT_EQ(start.some, 10);
  Starter hexadecimal;
  EXPECT_EQ(hexadecimal.Parse({"--some", "0x2", "program"}), 2);
  EXPECT_THAT(hexadecimal.err, HasSubstr("\"0x2\" is no whole number"));
  Starter large;
  EXPECT_EQ(large.Parse({"--some", "101", "program"}), 2);
  EXPECT_THAT(large.err, HasSubstr("101 not in range 1 to 100"));
}

TEST(CommandLineTest, PassesNoFlagOnThatStandsBeforeTheCommand) {
  Starter start;
  EXPECT_EQ(start.Parse({"--num-rank", "3", "program"}), 2);
  EXPECT_THAT(start.err,
              StartsWith("start: there is no flag --num-rank; did you mean --num-ranks?"));
  Starter nothing;
  EXPECT_EQ(nothing.Parse({"-n", "3"}), 2);
  EXPECT_THAT(nothing.err, StartsWith("start: there is no program to start; `start --help`"));
}

}  // namespace
}  // namespace dtensor
