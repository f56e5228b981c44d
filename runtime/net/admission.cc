#include "dtensor/runtime/net/admission.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

constexpr std::chrono::seconds kPatience(5);
constexpr std::chrono::milliseconds kHearing(100);

// For short texts: one call sends the whole text, or this returns false.
bool SendShort(Socket& socket, const std::string& text) {
  const auto sent = socket.SendSome({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  return sent.ok() && *sent == text.size();
}

}  // namespace

absl::StatusOr<std::optional<Admitted>> Admission::Next(NetClock::time_point deadline) {
  std::optional<Admitted> admitted;
  while (true) {
    for (auto caller = callers_.begin(); caller != callers_.end() && !admitted;) {
      const bool stays = Hear(*caller, admitted) && NetClock::now() < caller->came + kPatience;
      caller = stays ? std::next(caller) : callers_.erase(caller);
    }
    DT_ASSIGN_OR_RETURN(const bool has_room, AcceptAll());
    if (admitted || NetClock::now() >= deadline) return admitted;
    std::vector<pollfd> waits = {{listener_.fd(), static_cast<short>(has_room ? POLLIN : 0), 0}};
    for (const Caller& caller : callers_) waits.push_back({caller.socket.fd(), POLLIN, 0});
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - NetClock::now()).count();
    poll(waits.data(), waits.size(),
         static_cast<int>(std::clamp<int64_t>(left, 0, has_room ? 100 : 10)));
  }
}

absl::StatusOr<bool> Admission::AcceptAll() {
  for (size_t i = 0; i < kMostCallers; ++i) {
    if (callers_.size() == kMostCallers && !LetFirstGo()) return false;
    absl::StatusOr<Socket> socket = AcceptFrom(listener_);
    // Unknown callers may have used up the process's last descriptors.
    if (absl::IsResourceExhausted(socket.status()) && !callers_.empty()) {
      if (!LetFirstGo()) return false;
      continue;
    }
    DT_RETURN_IF_ERROR(socket.status());
    if (!socket->is_open()) return true;
    Caller caller{*std::move(socket), RandomNonce(), "", NetClock::now()};
    if (SendShort(caller.socket, caller.nonce)) callers_.push_back(std::move(caller));
  }
  return true;
}

bool Admission::LetFirstGo() {
  if (NetClock::now() < callers_.front().came + kHearing) return false;
  callers_.pop_front();
  return true;
}

bool Admission::Hear(Caller& caller, std::optional<Admitted>& admitted) {
  std::byte buffer[Hello::kBytes];
  const size_t wanted = Hello::kBytes - caller.said.size();
  const auto got = caller.socket.ReceiveSome(absl::MakeSpan(buffer, wanted));
  if (!got.ok()) return false;
  caller.said.append(reinterpret_cast<const char*>(buffer), *got);
  if (caller.said.size() < Hello::kBytes) return true;
  Hello hello;
  Verdict verdict = ReadHello(caller.said, key_, caller.nonce, hello);
  if (verdict == Verdict::kWelcome && hello.kind != kind_) verdict = Verdict::kStranger;
  if (verdict == Verdict::kWelcome && !is_awaited_(static_cast<int>(hello.rank))) {
    verdict = Verdict::kWrongRank;
  }
  if (verdict == Verdict::kStranger) ++strangers_;
  if (verdict == Verdict::kWrongSize) of_wrong_size_ = hello.rank;
  if (verdict == Verdict::kWrongRank) of_wrong_rank_ = hello.rank;
  std::string answer(1, static_cast<char>(verdict));
  if (verdict == Verdict::kWelcome) answer += WelcomeProof(key_, hello, caller.nonce);
  if (SendShort(caller.socket, answer) && verdict == Verdict::kWelcome) {
    admitted = Admitted{static_cast<int>(hello.rank), std::move(caller.socket)};
  }
  return false;
}

std::string Admission::TurnedAway() const {
  std::string text;
  if (of_wrong_size_) {
    absl::StrAppend(&text, "; rank ", *of_wrong_size_,
                    " called, and says that its world has another number of ranks");
  }
  if (of_wrong_rank_) {
    absl::StrAppend(&text, "; another rank ", *of_wrong_rank_, " called");
  }
  if (strangers_ > 0) {
    absl::StrAppend(&text, "; ", strangers_, strangers_ == 1 ? " caller was" : " callers were",
                    " of another job, or had another secret");
  }
  return text;
}

}  // namespace dtensor
