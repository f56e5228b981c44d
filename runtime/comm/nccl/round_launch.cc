#include "dtensor/runtime/comm/nccl/round_launch.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "dtensor/runtime/kernels/box.h"

namespace dtensor {
namespace {

class RoundLaunch {
 public:
  RoundLaunch(const CarriedCall& call, const CarriedRound& round) : call_(call), round_(round) {}

  absl::Status Run(int64_t& bytes) {
    DT_RETURN_IF_ERROR(PlaceSends());
    DT_RETURN_IF_ERROR(PlaceReceives());
    DT_RETURN_IF_ERROR(kernels::MoveBoxes(call_.queue, "Pack", packs_));
    if (!sends_.empty() || !receives_.empty()) {
      DT_RETURN_IF_ERROR(
          call_.group.Call([&](ncclComm_t comm) { return SendAndReceive(comm); }, call_.stop));
    }
    for (const Message& message : receives_) bytes += message.bytes;
    std::vector<kernels::BoxMove> combines;
    for (size_t i = 0; i < round_.receives.size(); ++i) {
      const CarriedPiece& piece = round_.receives[i];
      if (terms_[i].empty()) continue;  // it was received in place
      combines.push_back(CombineMove(call_.parts[piece.part], piece.dims, terms_[i]));
    }
    return kernels::MoveBoxes(call_.queue, "Unpack", combines);
  }

 private:
  struct Message {
    int peer;
    std::byte* data;
    int64_t bytes;
  };
  // A term of a piece, from some peer.
  struct Term {
    size_t piece, index;
  };

  static int64_t BytesOf(const std::vector<CarriedPiece>& pieces) {
    int64_t bytes = 0;
    for (const CarriedPiece& piece : pieces) bytes += piece.bytes;
    return bytes;
  }

  // What is sent alone, without gaps, is sent from where it is.
  absl::Status PlaceSends() {
    int64_t staged = 0;
    for (const auto& [peer, pieces] : round_.sends) staged += Staging::Aligned(BytesOf(pieces));
    DT_ASSIGN_OR_RETURN(sending_, Staging::Make(call_.queue, InPlaceSends() ? 0 : staged));
    for (const auto& [peer, pieces] : round_.sends) {
      const Tensor& source = call_.parts[pieces[0].part].src;
      const auto run = RunOf(source, pieces[0].dims, BoxSide::kSource);
      if (pieces.size() == 1 && run) {
        sends_.push_back({peer, run->data(), pieces[0].bytes});
        continue;
      }
      sending_.Align();
      sends_.push_back({peer, sending_.next(), BytesOf(pieces)});
      for (const CarriedPiece& piece : pieces) Pack(piece, sending_);
    }
    return absl::OkStatus();
  }
  bool InPlaceSends() const {
    return absl::c_all_of(round_.sends, [&](const auto& send) {
      const std::vector<CarriedPiece>& pieces = send.second;
      return pieces.size() == 1 &&
             RunOf(call_.parts[pieces[0].part].src, pieces[0].dims, BoxSide::kSource).has_value();
    });
  }

  Tensor Pack(const CarriedPiece& piece, Staging& staging) {
    const Tensor& source = call_.parts[piece.part].src;
    Tensor packed = staging.Take(source.dtype(), ShapeOf(piece.dims));
    packs_.push_back(PackMove(source, piece.dims, packed));
    return packed;
  }

  absl::Status PlaceReceives() {
    std::map<int, std::vector<Term>> by_peer;
    for (size_t i = 0; i < round_.receives.size(); ++i) {
      const CarriedPiece& piece = round_.receives[i];
      for (size_t k = 0; k < piece.peers.size(); ++k) by_peer[piece.peers[k]].push_back({i, k});
    }
    int64_t staged = 0;
    for (const auto& [peer, terms] : by_peer) staged += Staging::Aligned(BytesOf(terms));
    DT_ASSIGN_OR_RETURN(receiving_, Staging::Make(call_.queue, staged));
    terms_.resize(round_.receives.size());
    for (const auto& [peer, terms] : by_peer) Place(peer, terms);
    return absl::OkStatus();
  }

  // What one peer sends. This rank itself is included, which only packs.
  void Place(int peer, const std::vector<Term>& terms) {
    if (terms.size() == 1 && peer != call_.rank) {
      const CarriedPiece& piece = round_.receives[terms[0].piece];
      const ExchangePart& part = call_.parts[piece.part];
      const auto run = IsCopy(part, piece.peers.size())
                           ? RunOf(part.dst, piece.dims, BoxSide::kResult)
                           : std::nullopt;
      if (run) return receives_.push_back({peer, run->data(), piece.bytes});
    }
    receiving_.Align();
    if (peer != call_.rank) receives_.push_back({peer, receiving_.next(), BytesOf(terms)});
    for (const Term& term : terms) {
      const CarriedPiece& piece = round_.receives[term.piece];
      std::vector<Tensor>& of_piece = terms_[term.piece];
      of_piece.resize(piece.peers.size());
      of_piece[term.index] = peer == call_.rank ? Pack(piece, receiving_)
                                                : receiving_.Take(SentType(call_.parts[piece.part]),
                                                                  ShapeOf(piece.dims));
    }
  }
  int64_t BytesOf(const std::vector<Term>& terms) const {
    int64_t bytes = 0;
    for (const Term& term : terms) bytes += round_.receives[term.piece].bytes;
    return bytes;
  }

  ncclResult_t SendAndReceive(ncclComm_t comm) const {
    ncclResult_t result = ncclSuccess;
    const auto heed = [&](ncclResult_t called) {
      if (result == ncclSuccess && called != ncclInProgress) result = called;
    };
    for (const Message& to : sends_) {
      heed(ncclSend(to.data, to.bytes, ncclUint8, call_.NumberOf(to.peer), comm, call_.stream));
    }
    for (const Message& from : receives_) {
      heed(ncclRecv(from.data, from.bytes, ncclUint8, call_.NumberOf(from.peer), comm,
                    call_.stream));
    }
    return result;
  }

  const CarriedCall& call_;
  const CarriedRound& round_;
  Staging sending_, receiving_;
  std::vector<kernels::BoxMove> packs_;
  std::vector<Message> sends_, receives_;
  std::vector<std::vector<Tensor>> terms_;  // [piece][peer]; empty if received in place
};

}  // namespace

absl::Status LaunchRound(const CarriedCall& call, const CarriedRound& round, int64_t& bytes) {
  return RoundLaunch(call, round).Run(bytes);
}

}  // namespace dtensor
