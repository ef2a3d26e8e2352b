// Team over collectives: texts travel as tensors of bytes.
#include "millrace/training/endpoint_team.hpp"

#include <algorithm>
#include <cstring>

namespace millrace {

EndpointTeam::EndpointTeam(Endpoint& endpoint, std::chrono::milliseconds patience)
    : collectives_(endpoint), patience_(patience) {}

int EndpointTeam::members() const {
  return static_cast<int>(collectives_.members().size());
}

Deadline EndpointTeam::deadline() const {
  return std::chrono::steady_clock::now() + patience_;
}

void EndpointTeam::begin_step(std::uint64_t step) {
  collectives_.begin_step(step);
}

void EndpointTeam::sum(std::span<double> values, Topic topic) {
  collectives_.speak_of(topic);
  collectives_.all_reduce(values, ReduceOp::Sum, deadline());
}

std::vector<std::string> EndpointTeam::gather(const std::string& mine, Topic topic) {
  collectives_.speak_of(topic);
  Tensor bytes(DType::U8, {static_cast<std::int64_t>(mine.size())});
  std::copy(mine.begin(), mine.end(), static_cast<char*>(bytes.data()));
  const Rank root = collectives_.members().front();
  TensorList all;
  for (TensorList& part : collectives_.gather(root, TensorList(std::move(bytes)), deadline()))
    all.push_back(std::move(part[0]));
  collectives_.broadcast(root, all, deadline());
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < all.size(); ++i)
    texts.emplace_back(static_cast<const char*>(all[i].data()), all[i].bytes());
  return texts;
}

}  // namespace millrace
