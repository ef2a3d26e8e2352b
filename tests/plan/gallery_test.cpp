// The gallery: every schedule is on the page, whole and without outside resources.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/generators.hpp"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// What stands about a schedule.
std::string section_of(const std::string& page, std::string_view name) {
  const std::size_t from = page.find("<section id=\"" + std::string(name) + "\">");
  EXPECT_NE(from, std::string::npos) << name;
  return page.substr(from, page.find("</section>", from) - from);
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
    ++found;
  return found;
}

std::string escaped(std::string text) {
  for (std::size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at))
    text.replace(at, 1, "&lt;");
  for (std::size_t at = text.find('>'); at != std::string::npos; at = text.find('>', at))
    text.replace(at, 1, "&gt;");
  return text;
}

TEST(Gallery, EverySchedule_HasFormsSourceAndMemory) {
  const std::string page = draw_gallery();

  EXPECT_EQ(count(page, "<section "), schedules().size());
  for (const ScheduleEntry& entry : schedules()) {
    const std::string section = section_of(page, entry.name);
    for (const std::string_view words :
         {entry.name, entry.title, entry.needs, entry.bubble, entry.peak, entry.source})
      EXPECT_THAT(section, HasSubstr(escaped(std::string(words)))) << entry.name;
    if (entry.name == "stp") {  // for more micro-batches
      EXPECT_THAT(section, HasSubstr("works from m = 3p-1: at least 11"));
      continue;
    }
    const Program program = generate(entry.name, {.ranks = 4, .micro_batches = 8});
    EXPECT_EQ(count(section, "stroke-width='0.8'"), program.size()) << entry.name;
    EXPECT_EQ(count(section, "<path "), entry.name == "forward" ? 0U : 4U) << entry.name;
    EXPECT_THAT(page, HasSubstr("<a href=\"#" + std::string(entry.name) + "\">"));
  }
  for (const char* outside : {"href=\"h", "src=", "@import", "url(", "<script"})
    EXPECT_THAT(page, Not(HasSubstr(outside)));
}

TEST(Gallery, GivesTheFiguresOfItsPictures) {
  const std::string page = draw_gallery(4, 8);

  EXPECT_THAT(section_of(page, "1f1b"), HasSubstr("makespan 33, bubble 9 (27.27 %)"));
  EXPECT_THAT(section_of(page, "1f1b"), HasSubstr("peak activation 4; same bits"));
  EXPECT_THAT(section_of(page, "gpipe-lifo"), HasSubstr("in an order of its own"));
}

TEST(Gallery, SaysWhyAScheduleIsNotDrawn) {
  const std::string page = draw_gallery(3, 4);

  EXPECT_THAT(section_of(page, "chimera"), Not(HasSubstr("<svg")));
  EXPECT_THAT(section_of(page, "chimera"), HasSubstr("<dt>here</dt><dd>"));
  EXPECT_THAT(section_of(page, "1f1b"), HasSubstr("<svg"));
  EXPECT_THROW((void)draw_gallery(0, 4), InvalidArgument);
}

}  // namespace
}  // namespace millrace
