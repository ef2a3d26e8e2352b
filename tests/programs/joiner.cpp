// A program under `millrace launch`: trains a rank of a perceptron and prints the hash of its
// weights, or does first what the words after it say.
//
//     joiner [RANK WORD]... [IGNORED WORDS]
//
// Rank RANK (or every one, with "all") does WORD: see deed_of.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/training/ranks.hpp"
#include "millrace/training/trainer.hpp"
#include "millrace/transport/endpoint.hpp"
#include "millrace/transport/launch.hpp"

namespace {

using namespace millrace;

/// What this rank was asked to do; empty: nothing but train.
std::string deed_of(const std::vector<std::string>& words) {
  const char* rank = std::getenv("MILLRACE_RANK");  // NOLINT(concurrency-mt-unsafe)
  const std::string self = rank == nullptr ? "0" : rank;
  for (std::size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i] == self || words[i] == "all") return words[i + 1];
  return {};
}

/// Before the ranks meet.
void before(const std::string& deed) {
  if (deed == "ends") std::exit(0);   // NOLINT(concurrency-mt-unsafe)
  if (deed == "fails") std::exit(3);  // NOLINT(concurrency-mt-unsafe)
  if (deed == "sleeps")
    for (;;) ::pause();
}

/// When they have met.
void after(const std::string& deed) {
  if (deed == "throws") throw std::runtime_error("out of luck");
  if (deed == "dies") ::raise(SIGKILL);
  if (deed == "stops") ::raise(SIGSTOP);
  if (deed == "leaves") std::exit(0);  // NOLINT(concurrency-mt-unsafe)
}

/// Open files that have no name any more, as the keys that a launch hands on.
int nameless_files() {
  int count = 0;
  struct stat facts {};
  for (int file = 3; file < 256; ++file)
    count += ::fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_nlink == 0 ? 1 : 0;
  return count;
}

int train(const std::string& deed) {
  const int inherited = nameless_files();
  HelloFields fields = build_fields();
  fields.emplace_back("corpus", deed == "differs" ? "another" : "the digits");
  JoinedRank rank = join_launch({.fields = fields});
  after(deed);
  if (deed == "counts")
    std::cout << inherited << " nameless files, then " << nameless_files() << '\n';
  if (deed == "writes") std::ofstream(rank.log_directory() + "/note") << "a note\n";
  TrainerOptions options;
  options.step.seed = 5;
  const Program program = generate("1f1b", {.ranks = rank.world(), .micro_batches = 4});
  const ModelSpec model = parse_model("mlp:64-16-16-16-10");
  Trainer trainer(rank_parts(model, {program}, options, rank.endpoint(), rank.group()));
  Batch batch(select_rows(digits(), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), 4);
  const bool dies = deed == "dies-in-step-3" || (deed == "dies-once" && rank.attempt() == 0);
  for (int step = 0; step < (deed == "goes-on" ? 1'000'000 : 5); ++step) {
    if (dies && step == 3) trainer.before_update = [](auto) { ::raise(SIGKILL); };
    (void)trainer.step(batch);
    if (step == 0) std::cerr << "rank " << rank.rank().value << ": epoch\n";
  }
  const std::string hash = trainer.weights_hash();
  rank.leave();
  if (rank.rank() == Rank{0}) std::cout << "weights " << hash << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string deed = deed_of(words);
  if (deed == "lists")
    for (const std::string& word : words) std::cout << '<' << word << ">\n";
  before(deed);
  if (deed == "escapes") return train(deed);
  try {
    return train(deed);
  } catch (const std::exception& error) {
    std::cerr << "joiner: " << error.what() << '\n';
    return exit_code_of(error);
  }
}
