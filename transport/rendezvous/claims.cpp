#include "transport/rendezvous/claims.hpp"

#include <iterator>

#include "transport/rendezvous/hello.hpp"

namespace millrace {

namespace {

/// A process answers as soon as it is asked; this is for machines that are busy.
constexpr std::chrono::milliseconds kAnswerTime{400};

}  // namespace

bool Claims::heard(Rank rank, const HelloFields& hello, Clock::time_point now) {
  const Claimant who = hello_claimant(hello);
  Claim& claim = claims_.try_emplace(rank.value, Claim{who.word, {}, now, {}}).first->second;
  if (claim.question.empty()) {
    if (claim.owner == who.word) return true;
    claim.question = unique_word();
    claim.asked = now;
  }
  if (who.answers != claim.question) return false;
  claim.answered.insert_or_assign(who.word, who.process);
  if (claim.answered.size() > 1 && conflict_.empty())
    conflict_ = "two processes have rank " + std::to_string(rank.value) + ": " +
                claim.answered.begin()->second + " and " +
                std::next(claim.answered.begin())->second;
  return true;
}

void Claims::settle(Clock::time_point now) {
  for (auto& [rank, claim] : claims_) {
    if (claim.answered.size() != 1 || now - claim.asked < kAnswerTime) continue;
    claim = {claim.answered.begin()->first, {}, now, {}};
  }
}

std::string Claims::question(Rank rank) const {
  const auto found = claims_.find(rank.value);
  return found == claims_.end() ? std::string() : found->second.question;
}

}  // namespace millrace
