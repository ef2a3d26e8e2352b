// One vocabulary: what the subcommands' own --help says, read as a person reads it. A letter means
// the same in every subcommand.
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "cli/command_test.hpp"
#include "cli/offers.hpp"

namespace millrace::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;
using testing::StartsWith;

TEST(Vocabulary, Letter_HasOneMeaning) {
  std::map<std::string, std::string> meaning, letter;
  std::vector<std::string> all = subcommands();
  ASSERT_THAT(all, IsSupersetOf({"list", "show", "simulate", "train", "launch", "keys", "doctor"}));
  all.emplace_back("launch -- train");
  for (const std::string& subcommand : all)
    for (const Offer& offer : offers_of(subcommand)) {
      EXPECT_FALSE(offer.name.empty()) << subcommand << " " << offer.letter << " has no long name";
      EXPECT_EQ(letter.emplace(offer.name, offer.letter).first->second, offer.letter)
          << subcommand << " " << offer.name;
      if (offer.letter.empty()) continue;
      EXPECT_EQ(meaning.emplace(offer.letter, offer.name).first->second, offer.name)
          << subcommand << " " << offer.letter;
    }
  const std::map<std::string, std::string> words = {{"-d", "--data-parallel"},
                                                    {"-p", "--ranks"},
                                                    {"-m", "--micro-batches"},
                                                    {"-v", "--chunks"},
                                                    {"-q", "--slices"},
                                                    {"-n", "--processes"},
                                                    {"-h", "--help"}};
  EXPECT_EQ(meaning, words);
}

TEST(Vocabulary, LettersAndNamesAskForTheSame) {
  for (const std::string subcommand : {"simulate", "verify", "show"})
    EXPECT_EQ(
        command(subcommand + " seq-vpp -p 4 -m 6 -v 3 -q 2").text,
        command(subcommand + " seq-vpp --ranks 4 --micro-batches=6 --chunks 3 --slices 2").text);
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
    EXPECT_THAT(command("train " + name + " x").text, StartsWith("millrace: -m x: must be"));
    EXPECT_THAT(command("train " + name + " 0").text, StartsWith("millrace: -m 0: must be from 1"));
  }
}

TEST(Vocabulary, ProcessCount_IsNamedByItsFlag) {
  EXPECT_THAT(command("launch -n 9 -- train").text, StartsWith("millrace: -n 9: the model has 8"));
  EXPECT_THAT(command("launch -n 3 -- train --schedule chimera").text,
              AllOf(HasSubstr("-n is 3; a bidirectional pipeline works"), Not(HasSubstr("-p "))));
  EXPECT_THAT(
      command("launch -n 3 -- train -p 2").text,
      StartsWith("millrace: -p 2: 3 processes for 2 places; 1 or 2 would have as many each"));
}

}  // namespace
}  // namespace millrace::test
