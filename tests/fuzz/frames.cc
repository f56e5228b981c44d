// A stream of frames. The first byte says how it is cut, the second how long a frame may be.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/runtime/net/framed_link.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

struct Stream {
  std::vector<Frame> frames;
  bool refused = false;
};

Stream Read(absl::string_view bytes, size_t most, size_t cut) {
  FrameReader reader(most);
  Stream read;
  for (size_t at = 0; at < bytes.size() && !read.refused; at += cut) {
    reader.Add(bytes.substr(at, cut));
    while (true) {
      const absl::StatusOr<std::optional<Frame>> next = reader.Next();
      read.refused = !IsRead(next);
      if (read.refused || !next->has_value()) break;
      Require((*next)->body.size() <= most, "no frame is too long");
      read.frames.push_back(**next);
    }
  }
  return read;
}

std::string Written(const std::vector<Frame>& frames) {
  std::string bytes;
  for (const Frame& frame : frames) bytes += EncodeFrame(frame.type, frame.body);
  return bytes;
}

}  // namespace

void Try(absl::string_view input) {
  if (input.size() < 2) return;
  const size_t cut = 1 + static_cast<unsigned char>(input[0]);
  const size_t most = static_cast<unsigned char>(input[1]) * 4;
  const absl::string_view bytes = input.substr(2);
  const Stream whole = Read(bytes, most, std::max<size_t>(bytes.size(), 1));
  const Stream parts = Read(bytes, most, cut);
  const std::string written = Written(whole.frames);
  Require(bytes.substr(0, written.size()) == written, "frames are written as they were read");
  Require(Written(parts.frames) == written, "frames are the same however the stream is cut");
  Require(parts.refused == whole.refused, "so is what is refused");
  Require(whole.refused || bytes.size() - written.size() < 5 + most, "no whole frame is left");
}

}  // namespace dtensor::fuzz
