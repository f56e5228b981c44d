#include "dtensor/tests/processes/proxy.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "dtensor/runtime/comm/process/control_messages.h"
#include "dtensor/runtime/comm/process/host_card.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/net/framed_link.h"
#include "dtensor/runtime/net/handshake.h"

namespace dtensor::processes {
namespace {

constexpr size_t kMostHeld = 1 << 20;
// What a listener says before frames begin (handshake.h).
constexpr size_t kGreeting = kNonceBytes + 1 + kProofBytes;

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

struct Proxy::Pipe {
  // Bytes on their way to `to`. Take and Give: false once an end has closed.
  struct Way {
    Socket *from, *to;
    std::string held;
    bool Take(std::string& taken) {
      std::byte buffer[65536];
      if (held.size() > kMostHeld) return true;
      const auto got = from->ReceiveSome(absl::MakeSpan(buffer));
      if (got.ok()) taken.append(reinterpret_cast<const char*>(buffer), *got);
      return got.ok();
    }
    bool Give() {
      const auto sent = to->SendSome(BytesOf(held));
      if (sent.ok()) held.erase(0, *sent);
      return sent.ok();
    }
  };

  int caller, callee;
  bool rewrites;  // until the cards have passed
  Socket calls, answers;
  Way there{&calls, &answers, {}}, back{&answers, &calls, {}};
  size_t greeted = 0;
  FrameReader frames{kMostControlBytes};
  bool silent = false, open = true;
};

Proxy::Proxy(int size, const HostPort& rank0) : size_(size), addresses_(size) {
  for (int rank = 1; rank < size; ++rank) addresses_[rank] = Open(rank0, rank, 0, true);
  thread_ = std::thread([this] { Run(); });
}

Proxy::~Proxy() {
  stop_ = true;
  thread_.join();
}

HostPort Proxy::Open(const HostPort& target, int caller, int callee, bool is_control) {
  Socket listener = ListenAt({"127.0.0.1", 0}).value();
  const HostPort address = {"127.0.0.1", PortOf(listener).value()};
  doors_.push_back({std::move(listener), target, caller, callee, is_control});
  return address;
}

void Proxy::CutOff(int rank, Cut how) {
  const std::lock_guard lock(mutex_);
  for (Pipe& pipe : pipes_) {
    if (pipe.caller != rank && pipe.callee != rank) continue;
    pipe.silent = true;
    pipe.open = how == Cut::kSilent;
  }
}

void Proxy::Run() {
  while (!stop_) {
    std::vector<pollfd> waits;
    {
      const std::lock_guard lock(mutex_);
      Accept();
      Move();
      for (const Door& door : doors_) waits.push_back({door.listener.fd(), POLLIN, 0});
      for (const Pipe& pipe : pipes_) {
        if (pipe.silent) continue;
        for (const Pipe::Way* way : {&pipe.there, &pipe.back}) {
          if (way->held.size() <= kMostHeld) waits.push_back({way->from->fd(), POLLIN, 0});
          if (!way->held.empty()) waits.push_back({way->to->fd(), POLLOUT, 0});
        }
      }
    }
    poll(waits.data(), waits.size(), 20);
  }
}

void Proxy::Accept() {
  for (Door& door : doors_) {
    Socket caller = AcceptFrom(door.listener).value();
    if (!caller.is_open()) continue;
    auto callee = ConnectTo(door.target, NetClock::now() + std::chrono::seconds(10));
    if (!callee.ok()) continue;
    Pipe& pipe = pipes_.emplace_back();
    pipe.caller = door.caller;
    pipe.callee = door.callee;
    pipe.rewrites = door.is_control;
    pipe.calls = std::move(caller);
    pipe.answers = *std::move(callee);
  }
}

void Proxy::Move() {
  for (Pipe& pipe : pipes_) {
    if (pipe.silent) continue;
    std::string back;
    bool open = pipe.there.Take(pipe.there.held) && pipe.back.Take(back);
    if (pipe.rewrites) Rewrite(pipe, back);
    pipe.back.held += back;
    open = open && pipe.there.Give() && pipe.back.Give();
    if (!open) pipe.open = false;
  }
  pipes_.remove_if([](const Pipe& pipe) { return !pipe.open; });
}

// Of the listener's bytes: what may pass now.
void Proxy::Rewrite(Pipe& pipe, std::string& bytes) {
  const size_t greets = std::min(bytes.size(), kGreeting - pipe.greeted);
  pipe.greeted += greets;
  pipe.frames.Add(absl::string_view(bytes).substr(greets));
  bytes.resize(greets);
  while (true) {
    const auto frame = pipe.frames.Next();
    if (!frame.ok() || !*frame) return;
    Frame passed = **frame;
    if (passed.type == static_cast<uint8_t>(ControlMessage::kCards)) {
      WorldCards cards = ReadCards(passed.body, size_).value();
      for (int rank = 0; rank < pipe.caller; ++rank) {
        RankCard& card = cards.ranks[rank];
        HostCard text = ReadHostCard(card.text).value();
        const HostPort target = {card.host.empty() ? "127.0.0.1" : card.host, text.port};
        text.port = Open(target, pipe.caller, rank, false).port;
        card.text = Encode(text);
      }
      passed.body = Encode(cards);
    }
    bytes += EncodeFrame(passed.type, passed.body);
  }
}

}  // namespace dtensor::processes
