// One vocabulary: what the verbs' own --help says, read as a person reads it. A letter means the
// same in every verb, old names still work and say the new one.
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "cli/offers.hpp"
#include "cli/verb_test.hpp"

namespace millrace::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;
using testing::StartsWith;

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

TEST(Vocabulary, ProcessCount_IsNamedByItsFlag) {
  EXPECT_THAT(command("launch -n 9 -- train").text, StartsWith("millrace: -n 9: the model has 8"));
  EXPECT_THAT(command("launch -n 3 -- train --schedule chimera").text,
              AllOf(HasSubstr("-n is 3; a bidirectional pipeline works"), Not(HasSubstr("-p "))));
  EXPECT_THAT(
      command("launch -n 3 -- train -p 2").text,
      StartsWith("millrace: -p 2: 3 processes for 2 places; 1 or 2 would have as many each"));
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

}  // namespace
}  // namespace millrace::test
