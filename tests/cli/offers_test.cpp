// No subcommand offers what it refuses: every option of every subcommand's --help is typed once
// where it makes sense, and is taken.
#include "cli/offers.hpp"

#include <map>
#include <string>

#include <gmock/gmock.h>

#include "cli/command_test.hpp"
#include "support/free_address.hpp"

namespace millrace::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kText =
    "--model gpt:layers=1,d=8,heads=2,context=8 --data text --batch-size 4 --steps 1 ";

/// What is typed behind a subcommand, by option.
using Lines = std::map<std::string, std::string>;

class Offers : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    ASSERT_EQ(command("show 1f1b -p 2 -m 2 --csv " + path("s.csv")).code, 0);
    ASSERT_EQ(command("show 1f1b -p 2 -m 2 --plan " + path("plan.json")).code, 0);
    ASSERT_EQ(command("show 1f1b -p 2 -m 2 --trace " + path("trace.json")).code, 0);
    ASSERT_EQ(command("import " + path("trace.json") + " --out " + path("costs.json")).code, 0);
    write("old.csv", "0F0,0B0,0W0\n");
    write("job.toml", "epochs = 1\n");
    write("torch.json", R"({"traceEvents": [{"ph": "X", "name": "PP:0F0", "ts": 1, "dur": 2}]})");
    ASSERT_EQ(
        command("train --model mlp:64-8-8-8-10 --steps 1 -p 2 -m 2 --save " + path("saved")).code,
        0);
    ASSERT_EQ(command("checkpoint export " + path("saved/step-0000000001") + " --output " +
                      path("weights.safetensors"))
                  .code,
              0);
  }

  /// "--out FILE" with a file of this test.
  [[nodiscard]] std::string file(const std::string& option) const {
    return option + " " + path("written");
  }

  /// Of show, verify, simulate and compare.
  [[nodiscard]] Lines schedule_lines() const {
    const std::string link = " --message-bytes 1 --bandwidth 1";
    return {{"--ranks", "1f1b --ranks 3"},
            {"--micro-batches", "1f1b --micro-batches 3"},
            {"--chunks", "interleaved --chunks 2"},
            {"--slices", "seq-1f1b --slices 2"},
            {"--group", "interleaved --group 4"},
            {"--waves", "wave --waves 1"},
            {"--order", "gpipe --order lifo"},
            {"--comms", "1f1b --comms"},
            {"--split", "1f1b --split"},
            {"--recompute", "1f1b --recompute=stages:0,2-3"},
            {"--r", "1f1b --r 2 --recompute"},
            {"--mem-boundary", "1f1b --mem-boundary 0.1 --recompute"},
            {"--legacy-csv", path("old.csv") + " --legacy-csv"},
            {"--skip-sharding", path("s.csv") + " --skip-sharding"},
            {"--f", "1f1b --f 2"},
            {"--i", "1f1b --i 2"},
            {"--w", "1f1b --w 2"},
            {"--slice-costs", "seq-1f1b --slices 2 --slice-costs 1,2"},
            {"--chunk-costs", "interleaved --chunks 2 --chunk-costs"},
            {"--costs", "1f1b -p 2 --costs " + path("costs.json")},
            {"--atomic-pairs", "dualpipe --atomic-pairs"},
            {"--pair-cost", "dualpipe --pair-cost 3"},
            {"--pair-input", "dualpipe --pair-input 3"},
            {"--pair-weight", "dualpipe --pair-weight 3"},
            {"--pair-forward", "dualpipe --pair-forward 3"},
            {"--latency", "1f1b --latency 1"},
            {"--message-bytes", "1f1b" + link},
            {"--bandwidth", "1f1b" + link},
            {"--contention", "1f1b --contention" + link},
            {"--data-parallel", "1f1b --data-parallel 2"},
            {"--accumulate", "1f1b --accumulate 2"},
            {"--accumulate-order", "1f1b --accumulate-order tree"},
            {"--gradient-bytes", "1f1b -d 2 --gradient-bytes 4 --bandwidth 2"},
            {"--rank-speed", "1f1b --rank-speed 1,1,1,2"},
            {"--cores", "1f1b --cores 2"},
            {"--mem-f", "1f1b --mem-f 2"},
            {"--mem-i", "1f1b --mem-i 1"},
            {"--mem-w", "1f1b --mem-w -1"},
            {"--memory-limit", "1f1b --memory-limit 2p,2p,3p,3p"},
            {"--json", "1f1b --json"},
            {"--iterations", "1f1b --iterations 2"},
            {"--jitter", "1f1b --jitter 0.1"},
            {"--seed", "1f1b --jitter 0.1 --seed 2"},
            {"--capacity", "1f1b --capacity 2"},
            {"--transport", "1f1b --transport fifo"},
            {"--for", "1f1b --for torchtitan " + file("--csv")},
            {"--csv", "1f1b " + file("--csv")},
            {"--svg", "1f1b " + file("--svg")},
            {"--html", "1f1b " + file("--html")},
            {"--trace", "1f1b " + file("--trace")},
            {"--plan", "1f1b " + file("--plan")}};
  }

  [[nodiscard]] Lines compare_lines() const {
    Lines lines = schedule_lines();
    lines["--html"] = path("plan.json") + " " + path("trace.json") + " " + file("--html");
    return lines;
  }

  [[nodiscard]] Lines search_lines() const {
    Lines lines;
    for (const auto& [option, line] : schedule_lines())
      lines[option] = "-p 4 -m 2 --budget 10" + line.substr(line.find(' '));
    lines["--ranks"] = "--ranks 2 -m 2 --budget 10";
    lines["--micro-batches"] = "--micro-batches 2 --budget 10";
    lines["--costs"] = "-p 2 -m 2 --budget 10 --costs " + path("costs.json");
    lines["--memory-limit"] = "-m 2 --budget 10 --memory-limit 2p";
    lines["--seed"] = "-m 2 --budget 10 --seed 2";
    lines["--r"] = "-m 2 --budget 10 --r 2 --recompute choose";
    lines["--mem-boundary"] = "-m 2 --budget 10 --mem-boundary 0.1 --recompute choose";
    lines["--budget"] = "-m 2 --budget 10";
    for (const std::string more : {"--objective span",
                                   "--time-cap 60",
                                   "--no-bidirectional",
                                   "--full-backward",
                                   "--v-placement",
                                   "--recompute choose",
                                   "--from zb-h1"})
      lines[more.substr(0, more.find(' '))] = "-m 2 --budget 10 " + more;
    for (const char* option : {"--out", "--pareto"})
      lines[option] = "-m 2 --budget 10 " + file(option);
    return lines;
  }

  [[nodiscard]] Lines sweep_lines() const {
    Lines lines = {{"--chunks", "interleaved --chunks 1,2"},
                   {"--slices", "seq-1f1b --slices 2..3"},
                   {"--slice-costs", "seq-1f1b --slices 2 --slice-costs 1,2"},
                   {"--costs", "1f1b -p 2 --costs " + path("costs.json")},
                   {"--out", "1f1b " + file("--out")}};
    for (const std::string more : {"--ranks 2,4",
                                   "--micro-batches 2..4",
                                   "--times 1:1:1",
                                   "--latency 0,1",
                                   "--data-parallel 1,2",
                                   "--accumulate 1,2",
                                   "--gradient-bytes 4 -d 2",
                                   "--bandwidth 2 --message-bytes 1",
                                   "--message-bytes 1 --bandwidth 2",
                                   "--contention --message-bytes 1 --bandwidth 2",
                                   "--r 2",
                                   "--rank-speed 1,1,1,2",
                                   "--cores 2",
                                   "--atomic-pairs",
                                   "--pair-cost 3",
                                   "--pair-input 3",
                                   "--pair-weight 3",
                                   "--pair-forward 3",
                                   "--accumulate-order tree",
                                   "--chunk-costs",
                                   "--mem-f 2",
                                   "--mem-i 1",
                                   "--mem-w -1",
                                   "--mem-boundary 0.1",
                                   "--memory-limit none,2p",
                                   "--threads 2",
                                   "--json"})
      lines[more.substr(0, more.find(' '))] = "1f1b " + more;
    return lines;
  }

  [[nodiscard]] Lines train_lines() const {
    const std::string job = "--model mlp:64-8-8-8-10 --steps 1 --ranks 2 --micro-batches 2 ";
    Lines lines = {
        {"--model", job},
        {"--ranks", job},
        {"--data-parallel", job + "--data-parallel 2"},
        {"--shard-optimizer", job + "-d 2 --shard-optimizer"},
        {"--micro-batches", job},
        {"--steps", job},
        {"--dry-run", job + "--dry-run"},
        {"--epochs", "--model mlp:64-8-8-8-10 -p 2 -m 2 --epochs 1"},
        {"--chunks", job + "--schedule interleaved --chunks 2"},
        {"--effective-batch", job + "--effective-batch 32 --micro-batch-size 16"},
        {"--accumulate", job + "--accumulate 2"},
        {"--accumulate-order", job + "--schedule gpipe --accumulate-order tree"},
        {"--micro-batch-size", job + "--micro-batch-size 16"},
        {"--scale-lr-with-batch", job + "--scale-lr-with-batch 256:sqrt"},
        {"--parameters", job + "--parameters layers.0.bias:frozen"},
        {"--precision", job + "--precision bf16"},
        {"--loss-scale", job + "--loss-scale static:8"},
        {"--momentum", job + "--optimizer nesterov --momentum 0.8"},
        {"--save", job + "--save " + path("first")},
        {"--save-every", job + "--save " + path("second") + " --save-every 1"},
        {"--keep", job + "--save " + path("third") + " --keep 3"},
        {"--keep-every", job + "--save " + path("fourth") + " --keep-every 5"},
        {"--resume", job + "--save " + path("fifth") + " --resume auto"},
        {"--save-errors", job + "--save " + path("sixth") + " --save-errors continue"},
        {"--weights", job + "--weights " + path("weights.safetensors")},
        {"--narrow-weights", job + "--narrow-weights --weights " + path("weights.safetensors")},
        {"--plan", "--model mlp:64-8-8-8-10 --steps 1 --plan " + path("plan.json")},
        {"--config", "--model mlp:64-8-8-8-10 -p 2 -m 2 --config " + path("job.toml")}};
    for (const std::string more : {"--data digits",       "--batch-size 32",
                                   "--schedule gpipe",    "--partition even",
                                   "--executor ranks",    "--recompute",
                                   "--optimizer sgd",     "--lr 0.01",
                                   "--warmup 1",          "--lr-schedule linear",
                                   "--weight-decay 0.1",  "--beta1 0.8",
                                   "--beta2 0.99",        "--epsilon 1e-6",
                                   "--clip-norm 1",       "--max-skipped 3",
                                   "--dropout 0.1",       "--seed 2",
                                   "--last-batch drop",   "--json",
                                   "--inspect-gradients", "--threads-per-rank 2",
                                   "--validation 0.1"})
      lines[more.substr(0, more.find(' '))] = job + more;
    for (const std::string more : {"--validate-every 2ep", "--early-stopping 2", "--min-delta 0.1"})
      lines[more.substr(0, more.find(' '))] = job + "--validation 0.1 " + more;
    lines["--keep-best"] = job + "--validation 0.1 --keep-best accuracy --save " + path("seventh");
    for (const char* option : {"--trace", "--svg", "--profile"}) lines[option] = job + file(option);
    lines["--report"] = job + "--report " + path("run.html");
    lines["--log"] = job + "--log " + path("log.jsonl");
    lines["--metrics"] = job + "--metrics " + path("run.prom");
    lines["--lengths"] = std::string(kText) + "-p 2 -m 2 --lengths bucket";
    lines["--slices"] = std::string(kText) + "-p 2 -m 2 --schedule seq-1f1b --slices 2";
    return lines;
  }

  /// A checkpoint of a model of text, continued.
  [[nodiscard]] Lines generate_lines() const {
    EXPECT_EQ(command(std::string("train ") + kText + "-p 2 -m 2 --save " + path("text")).code, 0);
    const std::string job = "--tokens 2 --resume " + path("text") + " ";
    Lines lines = {{"--tokens", job}, {"--resume", job}};
    for (const std::string more : {"--prompt And",
                                   "--samples 2",
                                   "--temperature 0.5",
                                   "--seed 2",
                                   "--ranks 2",
                                   "--data text",
                                   "--json"})
      lines[more.substr(0, more.find(' '))] = job + more;
    return lines;
  }

  /// The ways that ranks talk, each in front of what they do.
  static void add_links(Lines& lines, const std::string& before, const std::string& work) {
    for (const std::string more : {"--endpoint tcp",
                                   "--endpoint tcp --interface 127.0.0.1",
                                   "--heartbeat-timeout 5",
                                   "--action-timeout 5",
                                   "--join-timeout 20",
                                   "--endpoint tcp --insecure",
                                   "--core-dumps"}) {
      const std::size_t last = more.find("--", 3);
      const std::string option = last == std::string::npos ? more : more.substr(last);
      lines[option.substr(0, option.find(' '))] = before + more + work;
    }
  }

  [[nodiscard]] Lines launch_lines() const {
    const std::string work = " -- train --model mlp:64-8-10 --steps 1 -m 2";
    Lines lines = {{"--processes", "--processes 2" + work},
                   {"--log-dir", "-n 2 --log-dir " + path("logs") + work},
                   {"--grace", "-n 2 --grace 1" + work},
                   {"--restarts", "-n 2 --restarts 3" + work},
                   {"--dry-run", "-n 2 --dry-run" + work},
                   {"--bind-cores", "-n 2 --bind-cores" + work}};
    add_links(lines, "-n 2 ", work);
    return lines;
  }

  [[nodiscard]] Lines worker_lines() const {
    const std::string alone = "--rank 0 --world 1 ", work = " -- train --model mlp:64-10 --steps 1";
    Lines lines;
    add_links(lines, alone + "--endpoint ipc ", work);
    for (const char* option : {"--endpoint", "--interface"})
      lines[option] = alone + "--endpoint tcp --insecure --interface 127.0.0.1" + work;
    lines["--insecure"] = lines["--endpoint"];
    for (const char* option : {"--rank", "--world"}) lines[option] = alone + "--insecure" + work;
    lines["--rendezvous"] = alone + "--insecure --rendezvous tcp://127.0.0.1:0" + work;
    lines["--job"] = alone + "--insecure --job 7" + work;
    EXPECT_EQ(command("keys -n 1 --out " + path("one")).code, 0);
    lines["--keys"] = alone + "--keys " + path("one") + work;
    return lines;
  }

  [[nodiscard]] Lines doctor_lines() const {
    Lines lines = {{"--processes", "--processes 2"},
                   {"--rendezvous", "--rendezvous " + free_address()},
                   {"--json", "--json"}};
    add_links(lines, "-n 2 ", "");
    return lines;
  }

  [[nodiscard]] std::map<std::string, Lines> lines_by_subcommand() const {
    const std::string trace = path("trace.json") + " ", costs = path("costs.json") + " --ranks 2 ";
    return {{"list", {{"--json", "--json"}, {"--html", file("--html")}}},
            {"train", train_lines()},
            {"show", schedule_lines()},
            {"verify", schedule_lines()},
            {"simulate", schedule_lines()},
            {"compare", compare_lines()},
            {"sweep", sweep_lines()},
            {"search", search_lines()},
            {"import",
             {{"--forward", trace + "--forward '{stage}F{micro_batch}'"},
              {"--backward", trace + "--backward '{stage}B{micro_batch}'"},
              {"--input", trace + "--input '{stage}I{micro_batch}'"},
              {"--weight", trace + "--weight '{stage}W{micro_batch}'"},
              {"--stage-from", trace + "--stage-from name"},
              {"--category", trace + "--category compute"},
              {"--ranks", trace + "--ranks 1"},
              {"--forward-only", trace + "--forward-only"},
              {"--v-placement", trace + "--v-placement"},
              {"--trace", path("torch.json") + " --forward-only " + file("--trace")},
              {"--out", trace + file("--out")}}},
            {"split",
             {{"--ranks", costs},
              {"--chunks", costs + "--chunks 1"},
              {"--json", costs + "--json"},
              {"--out", costs + file("--out")}}},
            {"launch", launch_lines()},
            {"worker", worker_lines()},
            {"keys",
             {{"--processes", "--processes 2 --out " + path("two")},
              {"--out", "-n 2 --out " + path("three")}}},
            {"doctor", doctor_lines()},
            {"generate", generate_lines()},
            {"checkpoint", {}}};
  }
};

TEST_F(Offers, NothingThatIsRefused) {
  const std::map<std::string, Lines> all = lines_by_subcommand();
  for (const std::string& subcommand : subcommands()) {
    ASSERT_THAT(all, Contains(testing::Key(subcommand)))
        << "a subcommand that this test does not know";
    const Lines& lines = all.at(subcommand);
    for (const Offer& offer : offers_of(subcommand)) {
      if (offer.name == "--help") continue;
      const auto line = lines.find(offer.name);
      EXPECT_NE(line, lines.end())
          << subcommand << " " << offer.name << ": where does it make sense?";
      if (line == lines.end()) continue;
      EXPECT_THAT(line->second, HasSubstr(offer.name));
      const Ran ran = command(subcommand + " " + line->second);
      EXPECT_EQ(ran.code, 0) << subcommand << " " << line->second << ": " << ran.text;
    }
  }
}

TEST_F(Offers, OmitSearchChoicesAndJsonOfDiagrams) {
  for (const std::string option : {"--group",
                                   "--waves",
                                   "--order",
                                   "--contention",
                                   "--cores",
                                   "--legacy-csv",
                                   "--accumulate-order"}) {
    EXPECT_THAT(names_of("simulate"), Contains(option));
    EXPECT_THAT(names_of("search"), Not(Contains(option)));
  }
  EXPECT_THAT(names_of("show"), Not(Contains("--json")));
}

TEST_F(Offers, Comparison_HasNoPlanAndNoTrace) {
  for (const std::string option : {"--plan", "--trace"})
    EXPECT_THAT(names_of("compare"), Not(Contains(option)));
  const Ran page = command("compare 1f1b,gpipe --html " + path("page.html"));
  EXPECT_EQ(page.code, 2);
  EXPECT_THAT(page.text, HasSubstr("--html goes with a plan and the trace file of its run"));
  EXPECT_THAT(command("search --slice-costs 1,2").text, HasSubstr("--slice-costs needs -q"));
}

}  // namespace
}  // namespace millrace::test
