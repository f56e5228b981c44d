#include "dtensor/tools/cli/explain/explain_picture.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace dtensor::cli {
namespace {

constexpr double kWidth = 960, kLabel = 330, kValue = 110, kRow = 22, kBar = 15;
constexpr const char *kComputing = "#4c78a8", *kWaiting = "#e45756";

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

// One bar. Its parts, from left to right, have a length and a colour.
struct Bar {
  std::string label, value;
  std::vector<std::pair<double, const char*>> parts;
  double length() const {
    double sum = 0;
    for (const auto& [part, colour] : parts) sum += part;
    return sum;
  }
};

std::string TextAt(double x, double y, const std::string& text, const char* more = "") {
  return absl::StrFormat("<text x=\"%g\" y=\"%g\"%s>%s</text>\n", x, y, more, Escaped(text));
}

// Draws bars below each other, the longest over the whole width. Moves `y` below them.
std::string DrawBars(const std::string& title, const std::vector<Bar>& bars, double& y) {
  std::string svg = TextAt(0, y + kBar, title, " font-weight=\"bold\"");
  y += kRow * 1.3;
  double longest = 0;
  for (const Bar& bar : bars) longest = std::max(longest, bar.length());
  const double scale = longest > 0 ? (kWidth - kLabel - kValue) / longest : 0;
  for (const Bar& bar : bars) {
    svg += TextAt(kLabel - 8, y + kBar * 0.8, bar.label, " text-anchor=\"end\"");
    double x = kLabel;
    for (const auto& [part, colour] : bar.parts) {
      const double width = part * scale;
      if (width > 0) {
        absl::StrAppendFormat(
            &svg, "<rect x=\"%.2f\" y=\"%g\" width=\"%.2f\" height=\"%g\" fill=\"%s\"/>\n", x, y,
            width, kBar, colour);
      }
      x += width;
    }
    svg += TextAt(x + 6, y + kBar * 0.8, bar.value, " fill=\"#444\"");
    y += kRow;
  }
  y += kRow;
  return svg;
}

std::vector<Bar> MemoryBars(const MemoryFigures& memory) {
  std::vector<Bar> bars;
  const auto add = [&](const std::string& label, int64_t bytes, const char* colour) {
    if (bytes == 0) return;
    bars.push_back({label, BytesText(bytes), {{static_cast<double>(bytes), colour}}});
  };
  for (const auto& [name, bytes] : PartsOf(memory)) add(name, bytes, kComputing);
  add("peak of all", memory.peak, "#777777");
  return bars;
}

std::vector<Bar> TimeBars(const std::vector<ModuleFigures>& modules) {
  std::vector<Bar> bars;
  for (const ModuleFigures& module : modules) {
    double seconds = 0, exposed = 0;
    for (const PhaseFigures& phase : module.phases) {
      seconds += phase.seconds() * static_cast<double>(module.modules);
      exposed += phase.exposed_seconds * static_cast<double>(module.modules);
    }
    if (seconds == 0) continue;
    bars.push_back({NameOf(module),
                    SecondsText(seconds),
                    {{seconds - exposed, kComputing}, {exposed, kWaiting}}});
  }
  return bars;
}

}  // namespace

std::string DrawExplanation(const Explanation& explanation, const std::string& title) {
  double y = 10;
  std::string body = TextAt(0, y + kBar, title, " font-size=\"15\"");
  y += kRow * 1.5;
  body += DrawBars("memory of the fullest rank", MemoryBars(explanation.rank.memory), y);
  const std::vector<Bar> times = TimeBars(explanation.modules);
  if (!times.empty()) {
    body += DrawBars("predicted time: computing (blue), waiting for communication (red)", times, y);
  }
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"-8 0 %g %g\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<title>%s</title>\n"
      "<rect x=\"-8\" width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n%s</svg>\n",
      kWidth, y, kWidth, y, Escaped(title), body);
}

}  // namespace dtensor::cli
