// The pictures: the terminal picture character by character, the SVG as XML, the trace there and
// back, the page's data.
#include "millrace/scheduler/plan/draw.hpp"

#include <array>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "support/figures.hpp"
#include "support/small_programs.hpp"

namespace millrace {
namespace {

using ::testing::HasSubstr;

struct Drawn {
  Program program;
  Cost cost;
  Timeline timeline;
};

Drawn drawn(Program program, double latency = 0) {
  const Cost cost = Cost::of_full_stage(program.shape, 1, 1, 1, latency);
  Timeline timeline = std::get<Timeline>(simulate(Graph(program), cost));
  return {std::move(program), cost, std::move(timeline)};
}

Drawn drawn(std::string_view name, int ranks, int micro_batches) {
  ScheduleOptions options;
  options.ranks = ranks;
  options.micro_batches = micro_batches;
  return drawn(generate(name, options));
}

std::size_t count(std::string_view text, std::string_view what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1))
    ++found;
  return found;
}

TEST(DrawAscii, OneFOneBIsTheStaircaseOfThePapers) {
  const Drawn it = drawn("1f1b", 4, 4);

  EXPECT_EQ(draw_ascii(it.program, it.timeline),
            "rank 0 | 0 1 2 3 . . . . . .B0== .B1== .B2== .B3==\n"
            "rank 1 | . 0 1 2 . . . .B0== 3B1== .B2== .B3== . .\n"
            "rank 2 | . . 0 1 . .B0== 2B1== 3B2== .B3== . . . .\n"
            "rank 3 | . . . 0B0== 1B1== 2B2== 3B3== . . . . . .\n");
}

TEST(DrawAscii, ChunksHaveALetterAndSplitBackwardsTheirOwn) {
  const Drawn it = drawn("interleaved-zb", 2, 2);

  EXPECT_EQ(draw_ascii(it.program, it.timeline),
            "rank 0 | a0 a1 b0 b1  .Ib0Wb0Ib1Wb1Ia0Wa0Ia1Wa1\n"
            "rank 1 |  . a0 a1 b0Ib0 b1Ib1Wb0Ia0Wb1Ia1Wa0Wa1\n");
}

TEST(DrawAscii, ColourChangesNoCharacterAndColumnsAreKept) {
  const Drawn it = drawn("1f1b", 4, 8);
  std::string coloured = draw_ascii(it.program, it.timeline, {.colour = true, .columns = 0});
  const std::string narrow = draw_ascii(it.program, it.timeline, {.colour = false, .columns = 40});

  EXPECT_EQ(count(coloured, "\x1b[44;97m"), 32U);  // a forward per rank and micro-batch
  for (auto at = coloured.find('\x1b'); at != std::string::npos; at = coloured.find('\x1b'))
    coloured.erase(at, coloured.find('m', at) - at + 1);
  EXPECT_EQ(coloured, draw_ascii(it.program, it.timeline));
  std::istringstream rows(narrow);
  for (std::string row; std::getline(rows, row);) EXPECT_EQ(row.size(), 40U);
}

TEST(Draw, ForwardOnly_DrawsNoSavedActivations) {
  const Drawn it = drawn("forward", 3, 4);

  const Graph graph(it.program);
  for (const RankReport& rank : report(graph, it.cost, it.timeline).ranks) {
    EXPECT_EQ(rank.peak_activation, 0);
    EXPECT_EQ(rank.peak_bytes, 0);
  }
  for (const auto& curve : memory_over_time(graph, it.cost, it.timeline))
    EXPECT_TRUE(curve.empty());
  EXPECT_EQ(count(draw_svg(it.program, it.timeline, it.cost), "memory held"), 0U);
  EXPECT_THAT(draw_html(it.program, it.timeline, it.cost),
              HasSubstr("\"memory\":{\"boundary\":[],\"forward\":[],"));
}

TEST(Draw, RefusesATimelineOfAnotherProgram) {
  const Drawn one = drawn("1f1b", 4, 8);
  const Drawn other = drawn("1f1b", 4, 7);

  EXPECT_THROW((void)draw_ascii(one.program, other.timeline), InvalidArgument);
  EXPECT_THROW((void)draw_svg(one.program, other.timeline, one.cost), InvalidArgument);
  EXPECT_THROW((void)draw_html(one.program, other.timeline, one.cost), InvalidArgument);
  EXPECT_THROW((void)draw_trace(one.program, other.timeline), InvalidArgument);
}

// Every element is closed in order and no attribute or text has a stray special character: enough
// of XML to know that a reader accepts what this writer makes.
void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at)) {
    const std::size_t end = xml.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = xml.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    ASSERT_EQ(count(tag, "'") % 2, 0U) << tag;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.front() == '/') {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ("/" + open.back(), tag);
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end;
  }
  EXPECT_TRUE(open.empty());
}

TEST(DrawOrder, PutsMarkedActionsIntoBrackets) {
  const Program program =
      millrace::testing_plan::program(millrace::testing_plan::straight(2, 1), {"0F0 0B0", "1F0+"});

  EXPECT_EQ(draw_order(program, {{Rank{0}, 1}, {Rank{1}, 0}, {Rank{1}, 1}}),
            "action |   0      1\n"
            "rank 0 |  0F0   [0B0]\n"
            "rank 1 | [1F0+]  [-]\n");
}

TEST(DrawOrder, ShowsWhatSurroundsTheMarksOfALongProgram) {
  const Program program = millrace::testing_plan::one_f_one_b(40, 60);

  EXPECT_EQ(draw_order(program, {{Rank{20}, 50}, {Rank{22}, 53}}, 1),
            "action  | ...   49      50      51      52      53      54\n"
            "...\n"
            "rank 19 | ...  19B14   19F35   19B15   19F36   19B16   19F37\n"
            "rank 20 | ...  20F34  [20B15]  20F35   20B16   20F36   20B17\n"
            "rank 21 | ...  21B15   21F34   21B16   21F35   21B17   21F36\n"
            "rank 22 | ...  22F33   22B16   22F34   22B17  [22F35]  22B18\n"
            "rank 23 | ...  23B16   23F33   23B17   23F34   23B18   23F35\n"
            "...\n");
}

TEST(DrawOrder, AnyProgram_StaysShort) {
  const Program program = millrace::testing_plan::one_f_one_b(100, 1000);

  EXPECT_LT(draw_order(program, {}).size(), 4000U);
  EXPECT_LT(draw_order(program, {{Rank{50}, 5}, {Rank{51}, 1900}}).size(), 2000U);
  EXPECT_EQ(draw_order(Program{}, {{Rank{0}, 0}}), "");
  EXPECT_THAT(draw_order(program, {{Rank{99}, 5000}}), HasSubstr("[-]"));
}

TEST(DrawSvg, IsWellFormedForTheWholeCatalogue) {
  for (const ScheduleEntry& entry : schedules()) {
    const Drawn it = drawn(entry.name, 4, testing_plan::fitting(entry).micro_batches);
    const std::string svg = draw_svg(it.program, it.timeline, it.cost, "a < b & 'c'");
    expect_well_formed(svg);
    EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; "));
    EXPECT_THAT(svg, ::testing::Not(HasSubstr("nan")));
    EXPECT_THAT(svg, ::testing::Not(HasSubstr("inf")));
  }
}

/// The number that follows `before`.
double number_after(const std::string& text, std::size_t from, const std::string& before) {
  return std::stod(text.substr(text.find(before, from) + before.size()));
}

TEST(DrawSvg, ItsLegendsEndBeforeTheRightEdge) {
  for (const char* name : {"dualpipe", "zb-v", "interleaved-zb", "chimera"}) {
    const Drawn it = drawn(name, 4, 8);
    const std::string svg = draw_svg(it.program, it.timeline, it.cost, name);
    const double width = number_after(svg, 0, "width='");
    for (std::size_t at = svg.find("<text"); at != std::string::npos;
         at = svg.find("<text", at + 1)) {
      const std::size_t words = svg.find('>', at) + 1;
      if (svg.substr(at, words - at).find("class=") != std::string::npos) continue;  // not a legend
      const auto letters = static_cast<double>(svg.find('<', words) - words);
      EXPECT_LT(number_after(svg, at, "x='") + 5 * letters, width) << name << svg.substr(words, 20);
    }
  }
}

TEST(DrawSvg, HasABoxPerActionAndACurvePerRank) {
  const Drawn it = drawn("zb-h1", 4, 8);

  const std::string svg = draw_svg(it.program, it.timeline, it.cost);

  EXPECT_EQ(count(svg, "stroke-width='0.8'"), it.program.size());
  EXPECT_EQ(count(svg, "<path "), 4U);
  for (const char* word :
       {">forward<", ">backward-input<", ">backward-weight<", ">idle<", ">time<"})
    EXPECT_THAT(svg, HasSubstr(word));
  EXPECT_THAT(svg, ::testing::Not(HasSubstr(">backward<")));
}

/// x, y, width and height of every idle ground.
std::vector<std::array<double, 4>> grounds(const std::string& svg) {
  std::vector<std::array<double, 4>> all;
  for (std::size_t at = svg.find("<rect x="); at != std::string::npos;
       at = svg.find("<rect x=", at + 1)) {
    const std::string rect = svg.substr(at, svg.find("/>", at) - at);
    if (rect.find("#e9e9ec") == std::string::npos || rect.find("rx=") != std::string::npos)
      continue;
    all.push_back({number_after(rect, 0, " x='"),
                   number_after(rect, 0, " y='"),
                   number_after(rect, 0, " width='"),
                   number_after(rect, 0, " height='")});
  }
  return all;
}

TEST(DrawSvg, SeveralSchedules_ShareOneScale) {
  std::vector<Panel> panels;
  std::vector<double> makespans;
  std::size_t actions = 0;
  for (const char* name : {"gpipe", "zb-h1", "interleaved", "dualpipe-v"}) {
    const Drawn it = drawn(name, 3, 6);
    panels.push_back({{it.program, it.timeline}, it.cost, name});
    makespans.push_back(report(Graph(it.program), it.cost, it.timeline).makespan);
    actions += it.program.size();
  }

  const std::string svg = draw_svg(panels);

  expect_well_formed(svg);
  EXPECT_EQ(count(svg, "stroke-width='0.8'"), actions);
  EXPECT_EQ(count(svg, "class='title'"), 4U);
  const auto rows = grounds(svg);
  ASSERT_EQ(rows.size(), 4U * 3);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    // One pixel per unit for all of them, to the rounding of a coordinate.
    EXPECT_NEAR(rows[i][2] / makespans[i / 3], rows[0][2] / makespans[0], 1e-4 * rows[0][2]);
    EXPECT_EQ(rows[i][0], rows[0][0]);
    const double above = i == 0 ? 0 : rows[i - 1][1] + rows[i - 1][3];
    EXPECT_GE(rows[i][1], above);
  }
  EXPECT_LE(rows.back()[1] + rows.back()[3], number_after(svg, 0, "height='"));
  EXPECT_THROW((void)draw_svg(std::vector<Panel>{}), InvalidArgument);
}

TEST(DrawTrace, ReadsBackTheSameTimeline) {
  for (const char* name : {"1f1b", "interleaved", "zb-h1", "seq-1f1b"}) {
    const Drawn it = drawn(insert_messages(drawn(name, 4, 8).program), 0.5);

    const ParsedTimeline read = read_trace(draw_trace(it.program, it.timeline), it.program);

    ASSERT_TRUE(read.timeline) << read.diagnostics.at(0).message;
    for (std::size_t rank = 0; rank < it.program.ranks.size(); ++rank)
      for (std::size_t i = 0; i < it.program.ranks[rank].size(); ++i) {
        const Interval& written = it.timeline.ranks[rank][i];
        const Interval& back = read.timeline->ranks[rank][i];
        EXPECT_NEAR(back.start, written.start / it.timeline.ticks_per_unit, 1e-12 * 1000);
        EXPECT_NEAR(back.end, written.end / it.timeline.ticks_per_unit, 1e-12 * 1000);
      }
  }
}

TEST(DrawTrace, HasThreadPerRankArrowPerMessage) {
  const Drawn it = drawn("1f1b", 4, 8);

  const auto events = nlohmann::json::parse(draw_trace(it.program, it.timeline))["traceEvents"];

  std::map<std::string, int> kinds;
  for (const auto& event : events) ++kinds[event["ph"].get<std::string>()];
  EXPECT_EQ(kinds["M"], 5);   // the process and four threads
  EXPECT_EQ(kinds["X"], 64);  // F and B of 8 micro-batches on 4 stages
  EXPECT_EQ(kinds["s"], 48);  // 3 borders, 8 micro-batches, both ways
  EXPECT_EQ(kinds["f"], 48);
}

std::string trace_fault(std::string_view text, const Program& program) {
  const ParsedTimeline read = read_trace(text, program);
  EXPECT_NE(read.timeline.has_value(), !read.diagnostics.empty());
  return read.timeline ? "" : to_string(read.diagnostics.front());
}

TEST(DrawTrace, FaultsOfATraceAreNamed) {
  const Drawn it = drawn("1f1b", 2, 2);
  const Drawn shorter = drawn("1f1b", 2, 1);
  const std::string event = R"({"ph":"X","tid":0,"ts":0,"dur":1,"args":{"action":"0F0"}})";

  EXPECT_EQ(trace_fault("{", it.program), "1:2: this is not JSON");
  EXPECT_EQ(trace_fault("[1e999]", it.program), "1:1: a number in the file is too large");
  EXPECT_EQ(trace_fault("{}", it.program), "1:1: there is no list of trace events");
  EXPECT_EQ(trace_fault(draw_trace(shorter.program, shorter.timeline), it.program),
            "1:1: the trace lacks 0F1 of rank 0");
  EXPECT_EQ(trace_fault(draw_trace(it.program, it.timeline), shorter.program),
            "1:1: the trace has 0F1 on rank 0, the program has not");
  EXPECT_EQ(trace_fault("[" + event + "," + event + "]", it.program),
            "1:1: the trace has 0F0 on rank 0 twice; keep one step");
  EXPECT_EQ(trace_fault(R"([{"ph":"X","tid":0,"args":{"action":"0F0"}}])", it.program),
            "1:1: the event of 0F0 lacks tid, ts or dur");
  EXPECT_EQ(
      trace_fault("[" + event, it.program),
      "1:1: the trace is of 1 rank, the program of 2; the file ends within its list of events");
}

TEST(DrawTrace, OtherRankCount_NamesBothNumbers) {
  const Drawn two = drawn("1f1b", 2, 4), four = drawn("1f1b", 4, 4);

  EXPECT_EQ(trace_fault(draw_trace(two.program, two.timeline), four.program),
            "1:1: the trace is of 2 ranks, the program of 4");
  EXPECT_EQ(trace_fault(draw_trace(four.program, four.timeline), two.program),
            "1:1: the trace is of 4 ranks, the program of 2");
}

TEST(DrawHtml, OnePage_HasAllActions) {
  const Drawn it = drawn("zb-h1", 4, 8);

  const std::string page = draw_html(it.program, it.timeline, it.cost, "<zb>");

  EXPECT_THAT(page, HasSubstr("<title>&lt;zb&gt;</title>"));
  for (const char* outside : {"http:", "https:", "src=", "href=", "@import", "url("})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  const std::string opening = "id=\"data\">";
  const std::size_t from = page.find(opening) + opening.size();
  const auto data = nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from));
  std::size_t actions = 0;
  for (const auto& rank : data["schedules"][0]) actions += rank.size();
  EXPECT_EQ(actions, it.program.size());
}

/// Four stages on as many ranks, with edges from stage 0 to 2 and 3.
Drawn with_skips(int micro_batches) {
  Program program = generate("1f1b", {.ranks = 4, .micro_batches = micro_batches});
  for (const auto& [from, to, input] :
       {std::array{0, 1, 0}, {1, 2, 0}, {2, 3, 0}, {0, 2, 1}, {0, 3, 1}})
    program.shape.edges.push_back(
        {.from = Stage{from}, .output = 0, .to = Stage{to}, .input = input});
  return drawn(std::move(program));
}

TEST(DrawSvg, SkipEdges_HaveAThinArrowEach) {
  const Drawn it = with_skips(5), chain = drawn("1f1b", 4, 5);

  const std::string svg = draw_svg(it.program, it.timeline, it.cost);

  expect_well_formed(svg);
  EXPECT_EQ(count(svg, "<path class='skip'"), 2U * 5U);
  EXPECT_EQ(count(svg, ">skip edge<"), 1U);
  EXPECT_EQ(count(draw_svg(chain.program, chain.timeline, chain.cost), "skip"), 0U);
}

TEST(DrawHtml, NamesTheTwoForwardsOfEverySkipArrow) {
  const Drawn it = with_skips(2), chain = drawn("1f1b", 4, 2);

  const std::string page = draw_html(it.program, it.timeline, it.cost);

  // 0F0 of rank 0 is used by 2F0 and 3F0, the first actions of ranks 2 and 3.
  EXPECT_THAT(page, HasSubstr("\"skips\":[[[0,0,2,0],[0,0,3,0],[0,1,2,1],[0,1,3,2]]]"));
  EXPECT_THAT(draw_html(chain.program, chain.timeline, chain.cost), HasSubstr("\"skips\":[[]]"));
}

TEST(DrawHtml, EveryMicroBatchCount_IsHeldOnce) {
  const Drawn it = drawn("1f1b", 2, 4), small = drawn("1f1b", 2, 1), same = drawn("1f1b", 2, 4);

  const std::string page =
      draw_html(it.program,
                it.timeline,
                it.cost,
                "",
                {{same.program, same.timeline}, {small.program, small.timeline}});

  EXPECT_THAT(page, HasSubstr("\"count\":4,\"counts\":[1,4]"));
  const Drawn wide = drawn("1f1b", 3, 2);
  EXPECT_THROW(
      (void)draw_html(it.program, it.timeline, it.cost, "", {{wide.program, wide.timeline}}),
      InvalidArgument);
}

}  // namespace
}  // namespace millrace
