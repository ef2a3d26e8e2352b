// One vocabulary: what the verbs' own --help says, read as a person reads it. A letter means the
// same in every verb, nothing is offered that is refused, old names still work and say the new one.
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "cli/verb_test.hpp"

namespace millrace::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;
using testing::StartsWith;

/// An option as --help tells it.
struct Offer {
  std::string letter;  ///< "-p"; empty: none
  std::string name;    ///< "--ranks"
};

std::vector<Offer> offers_of(const std::string& verb) {
  static const std::regex kOption("^  (-[A-Za-z])?,?(--[a-z][a-z-]*)?.*$");
  std::istringstream help(command(verb + " --help").text);
  std::vector<Offer> offers;
  std::smatch found;
  for (std::string line; std::getline(help, line);)
    if (std::regex_match(line, found, kOption) && (found[1].matched || found[2].matched))
      offers.push_back({found[1], found[2]});
  return offers;
}

std::vector<std::string> verbs() {
  std::istringstream help(command("--help").text);
  std::vector<std::string> names;
  bool listed = false;
  for (std::string line; std::getline(help, line);) {
    if (listed && line.starts_with("  ")) names.push_back(line.substr(2, line.find(' ', 2) - 2));
    listed = listed || line.starts_with("Subcommands:");
  }
  return names;
}

std::set<std::string> names_of(const std::string& verb) {
  std::set<std::string> names;
  for (const Offer& offer : offers_of(verb)) names.insert(offer.name);
  return names;
}

TEST(Vocabulary, ALetterMeansTheSameInEveryVerb) {
  std::map<std::string, std::string> meaning, letter;
  std::vector<std::string> all = verbs();
  ASSERT_THAT(all, IsSupersetOf({"list", "show", "simulate", "train", "launch", "keys", "doctor"}));
  all.emplace_back("launch -- train");
  for (const std::string& verb : all)
    for (const Offer& offer : offers_of(verb)) {
      EXPECT_FALSE(offer.name.empty()) << verb << " " << offer.letter << " has no long name";
      EXPECT_EQ(letter.emplace(offer.name, offer.letter).first->second, offer.letter)
          << verb << " " << offer.name;
      if (offer.letter.empty()) continue;
      EXPECT_EQ(meaning.emplace(offer.letter, offer.name).first->second, offer.name)
          << verb << " " << offer.letter;
    }
  const std::map<std::string, std::string> words = {{"-p", "--ranks"},
                                                    {"-m", "--micro-batches"},
                                                    {"-v", "--chunks"},
                                                    {"-q", "--slices"},
                                                    {"-n", "--processes"},
                                                    {"-h", "--help"}};
  EXPECT_EQ(meaning, words);
}

TEST(Vocabulary, LettersAndNamesAskForTheSame) {
  for (const std::string verb : {"simulate", "verify", "show"})
    EXPECT_EQ(command(verb + " seq-vpp -p 4 -m 6 -v 3 -q 2").text,
              command(verb + " seq-vpp --ranks 4 --micro-batches=6 --chunks 3 --slices 2").text);
  const std::string job = "train --model mlp:64-8-8-8-10 --steps 2 --schedule interleaved --json ";
  const auto hash = [](const std::string& text) {
    return text.substr(text.find("weights_hash"), 50);
  };
  EXPECT_EQ(hash(command(job + "-p 2 -m 4 -v 2").text),
            hash(command(job + "--ranks 2 --micro-batches 4 --chunks 2").text));
}

TEST(Vocabulary, RefusalsUseTheLetterWhicheverNameWasTyped) {
  for (const std::string name : {"-m", "--micro-batches"}) {
    EXPECT_EQ(command("show chimera " + name + " 7").text,
              "millrace: -m is 7 with -p 4; chimera works with multiples of p: 4 or 8\n");
    EXPECT_THAT(command("show 1f1b " + name).text, StartsWith("millrace: -m needs a value;"));
    EXPECT_THAT(command("train " + name + " x").text, StartsWith("millrace: -m is 'x'; expected"));
    EXPECT_THAT(command("train " + name + " 0").text, StartsWith("millrace: -m 0: must be from 1"));
  }
}

TEST(Vocabulary, NumbersOfProcessesAreCalledByTheFlagThatGaveThem) {
  EXPECT_THAT(command("launch -n 9 -- train").text, StartsWith("millrace: -n 9: the model has 8"));
  EXPECT_THAT(command("launch -n 3 -- train --schedule chimera").text,
              AllOf(HasSubstr("-n is 3; a bidirectional pipeline works"), Not(HasSubstr("-p "))));
  EXPECT_THAT(command("launch -n 3 -- train -p 2").text,
              StartsWith("millrace: -p 2: there are 3 processes, one per pipeline rank"));
}

class OldNames : public VerbTest {};

TEST_F(OldNames, WorkAndSayTheNewOne) {
  const std::string trained = "train --model mlp:64-8-10 -m 2 --steps 1 --json ";
  const std::string said = "millrace: --stages of train is called --ranks now\n";

  const Ran train = command(trained + "--stages=2");
  EXPECT_EQ(train.code, 0);
  EXPECT_THAT(train.text, StartsWith(said));
  EXPECT_THAT(train.text, HasSubstr("\"ranks\": 2"));

  write("old.toml", "stages = 2\n");
  EXPECT_THAT(command(trained + "--config " + path("old.toml")).text,
              AllOf(StartsWith(said), HasSubstr("\"ranks\": 2")));

  const Ran launch = command("launch --ranks 2 -- " + trained + "--stages 2");
  EXPECT_EQ(launch.code, 0) << launch.text;
  EXPECT_THAT(launch.text,
              AllOf(StartsWith("millrace: --ranks of launch is called --processes now\n" + said),
                    HasSubstr("\"ranks\": 2")));
  EXPECT_EQ(launch.text.find(said), launch.text.rfind(said)) << "said once, not by every rank";

  const Ran keys = command("keys --ranks 2 --out " + path("keys"));
  EXPECT_EQ(keys.code, 0);
  EXPECT_THAT(keys.text, StartsWith("millrace: --ranks of keys is called --processes now\n"));
  EXPECT_THAT(command("doctor --ranks 1").text,
              AllOf(StartsWith("millrace: --ranks of doctor is called --processes now\n"),
                    HasSubstr("\nmillrace: -n 1: it takes at least 2")));
}

TEST_F(OldNames, AreNotInTheHelp) {
  EXPECT_THAT(names_of("train"), Not(Contains("--stages")));
  for (const std::string verb : {"launch", "keys", "doctor"})
    EXPECT_THAT(names_of(verb), Not(Contains("--ranks")));
}

class Offers : public VerbTest {
 protected:
  /// A line in which the option makes sense, behind the verb; empty for one not known here.
  [[nodiscard]] std::string line_with(const std::string& option, bool searches) const {
    const std::string file = " --message-bytes 1 --bandwidth 1";
    std::map<std::string, std::string> lines = {
        {"--ranks", "1f1b --ranks 3"},
        {"--micro-batches", "1f1b --micro-batches 3"},
        {"--chunks", "interleaved --chunks 2"},
        {"--slices", "seq-1f1b --slices 2"},
        {"--group", "interleaved --group 4"},
        {"--waves", "wave --waves 1"},
        {"--order", "gpipe --order lifo"},
        {"--comms", "1f1b --comms"},
        {"--old-letters", path("s.csv") + " --old-letters"},
        {"--skip-sharding", path("s.csv") + " --skip-sharding"},
        {"--f", "1f1b --f 2"},
        {"--i", "1f1b --i 2"},
        {"--w", "1f1b --w 2"},
        {"--slice-costs", "seq-1f1b --slices 2 --slice-costs 1,2"},
        {"--chunk-costs", "interleaved --chunks 2 --chunk-costs"},
        {"--atomic-pairs", "dualpipe --atomic-pairs"},
        {"--latency", "1f1b --latency 1"},
        {"--message-bytes", "1f1b" + file},
        {"--bandwidth", "1f1b" + file},
        {"--contention", "1f1b --contention" + file},
        {"--rank-speed", "1f1b --rank-speed 1,1,1,2"},
        {"--mem-f", "1f1b --mem-f 2"},
        {"--mem-i", "1f1b --mem-i 1"},
        {"--mem-w", "1f1b --mem-w -1"},
        {"--memory-limit", "1f1b --memory-limit 2p"},
        {"--json", "1f1b --json"},
        {"--iterations", "1f1b --iterations 2"},
        {"--jitter", "1f1b --jitter 0.1"},
        {"--seed", "1f1b --seed 2"},
        {"--capacity", "1f1b --capacity 2"},
        {"--objective", " --objective span"},
        {"--budget", " --budget 10"},
        {"--time-cap", " --time-cap 60"},
        {"--one-copy", " --one-copy"}};
    for (const char* written : {"svg", "html", "trace", "plan", "csv", "out", "pareto"})
      lines[std::string("--") + written] = std::string("1f1b --") + written + " " + path(written);
    const std::string line = lines[option];
    if (!searches || line.empty()) return line;
    return (option == "--micro-batches" ? "" : "-m 2") +
           std::string(option == "--budget" ? "" : " --budget 10") + line.substr(line.find(' '));
  }
};

TEST_F(Offers, NothingThatIsRefused) {
  ASSERT_EQ(command("show 1f1b --csv " + path("s.csv")).code, 0);
  for (const std::string verb : {"show", "verify", "simulate", "search"})
    for (const Offer& offer : offers_of(verb)) {
      const std::string line = line_with(offer.name, verb == "search");
      if (line.empty()) continue;
      const Ran ran = command(verb + " " + line);
      EXPECT_NE(ran.code, 2) << verb << " " << line << ": " << ran.text;
    }
}

TEST_F(Offers, NoChoiceOfTheSearchAndNoJsonOfAPicture) {
  for (const std::string option :
       {"--group", "--waves", "--order", "--contention", "--atomic-pairs", "--old-letters"}) {
    EXPECT_THAT(names_of("simulate"), Contains(option));
    EXPECT_THAT(names_of("search"), Not(Contains(option)));
  }
  EXPECT_THAT(names_of("show"), Not(Contains("--json")));
}

}  // namespace
}  // namespace millrace::test
