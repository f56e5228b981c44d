#include "dtensor/tools/program/progress.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dtensor {
namespace {

constexpr double kQuiet = 2, kOnTerminal = 0.5, kElsewhere = 10;
constexpr absl::string_view kWipe = "\r\x1b[K";

}  // namespace

Progress::Options Progress::OnStderr(bool asked) {
  Options options;
  options.terminal = isatty(STDERR_FILENO) != 0;
  options.shows = asked || options.terminal;
  options.seconds = [] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  };
  options.write = [](absl::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  };
  return options;
}

Progress::Progress(std::string what, int64_t total, Options options)
    : what_(std::move(what)),
      total_(total),
      options_(std::move(options)),
      begin_(options_.shows ? options_.seconds() : 0),
      next_(begin_ + kQuiet) {}

Progress::~Progress() {
  if (written_ && options_.terminal) options_.write(kWipe);
}

void Progress::Report(int64_t done, absl::string_view more) {
  if (!options_.shows || done < 1) return;
  const double now = options_.seconds();
  if (now < next_) return;
  next_ = now + (options_.terminal ? kOnTerminal : kElsewhere);
  const auto left = static_cast<double>(std::max<int64_t>(total_ - done, 0));
  const double seconds = (now - begin_) / static_cast<double>(done) * left;
  const std::string line = absl::StrCat(done, " of ", total_, " ", what_, more.empty() ? "" : ", ",
                                        more, ", ", DurationText(seconds), " left");
  options_.write(options_.terminal ? absl::StrCat(kWipe, line) : absl::StrCat(line, "\n"));
  written_ = true;
}

std::string DurationText(double seconds) {
  constexpr double kMost = 3600.0 * 9999;
  const auto whole = static_cast<int64_t>(std::ceil(std::min(seconds, kMost)));
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours == 0) return absl::StrFormat("%d:%02d", minutes, whole % 60);
  return absl::StrFormat("%d:%02d:%02d", hours, minutes, whole % 60);
}

}  // namespace dtensor
