// Placements: straight, loop, V, zigzag and mirrored are one line each.
#include "millrace/scheduler/plan/shape.hpp"

#include "millrace/core/error.hpp"

namespace millrace {

namespace {

void require_ranks_and_chunks(int ranks, int chunks) {
  require(ranks >= 1, "ranks is " + std::to_string(ranks) + "; a pipeline has at least 1 rank");
  require(chunks >= 1, "chunks is " + std::to_string(chunks) + "; a rank has at least 1 chunk");
}

}  // namespace

Placement::Placement(std::vector<std::vector<Rank>> rank_of) : rank_of_(std::move(rank_of)) {
  for (const auto& stages : rank_of_) {
    require(stages.size() == rank_of_.front().size(),
            "every replica has the same number of stages");
    for (const Rank rank : stages) require(rank.value >= 0, "a rank is at least 0");
  }
}

Placement Placement::straight(int ranks) {
  return loop(ranks, 1);
}

Placement Placement::loop(int ranks, int chunks) {
  require_ranks_and_chunks(ranks, chunks);
  std::vector<Rank> rank_of;
  for (int stage = 0; stage < ranks * chunks; ++stage) rank_of.emplace_back(stage % ranks);
  return Placement({rank_of});
}

Placement Placement::vee(int ranks) {
  return zigzag(ranks, 2);
}

Placement Placement::zigzag(int ranks, int chunks) {
  require_ranks_and_chunks(ranks, chunks);
  std::vector<Rank> rank_of;
  for (int stage = 0; stage < ranks * chunks; ++stage) {
    const int offset = stage % ranks;
    rank_of.emplace_back((stage / ranks) % 2 == 0 ? offset : ranks - 1 - offset);
  }
  return Placement({rank_of});
}

Placement Placement::mirrored(int ranks) {
  require_ranks_and_chunks(ranks, 1);
  std::vector<Rank> down, up;
  for (int stage = 0; stage < ranks; ++stage) {
    down.emplace_back(stage);
    up.emplace_back(ranks - 1 - stage);
  }
  return Placement({down, up});
}

}  // namespace millrace
