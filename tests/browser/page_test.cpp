// The page in a real browser: opened, hovered by the address, and photographed.
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/command.hpp"

namespace millrace::test {
namespace {

using testing::HasSubstr;

std::string shell(const std::string& line) {
  std::FILE* pipe = ::popen(line.c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer{};
  for (std::size_t size = 1; size > 0;) {
    size = std::fread(buffer.data(), 1, buffer.size(), pipe);
    text.append(buffer.data(), size);
  }
  ::pclose(pipe);
  return text;
}

TEST(PageInTheBrowser, Hover_ShowsTimesWaitAndMemory) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("millrace_page_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const std::string page = (folder / "page.html").string();
  const std::string picture = (folder / "page.png").string();
  const std::string browser =
      "timeout 120 chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
      "--disable-background-networking --disable-component-update --disable-sync "
      "--window-size=1300,640 --user-data-dir=" +
      (folder / "profile").string();
  ASSERT_EQ(command("show 1f1b -p 4 -m 8 --html " + page).code, 0);

  // Rank 0, action 4 is the first backward: it waits for the gradient of stage 1.
  const std::string dom =
      shell(browser + " --dump-dom 'file://" + page + "#hover=0,4' 2>/dev/null");
  const std::string other =
      shell(browser + " --dump-dom 'file://" + page + "#m=16&hover=0,20' 2>/dev/null");
  shell(browser + " --screenshot=" + picture + " 'file://" + page + "#hover=0,4' 2>/dev/null");

  EXPECT_THAT(dom, HasSubstr("<b>0B0</b> on rank 0"));
  EXPECT_THAT(dom, HasSubstr("from 10 to 12, takes 2"));
  EXPECT_THAT(dom, HasSubstr("waited 6 for 1B0 of rank 1, which ended at 10"));
  EXPECT_THAT(dom, HasSubstr("memory of the rank: 4 at its start"));
  EXPECT_THAT(dom, HasSubstr("makespan 33, bubble 9"));
  EXPECT_THAT(dom, HasSubstr("micro-batches<input"));
  // The lines of the memory have names, in the colour of the line.
  EXPECT_THAT(dom, HasSubstr("memory held by<span class=\"rank\"><span class=\"line\""));
  EXPECT_THAT(dom, HasSubstr("</span>rank 3</span></div>"));
  // The slider's m = 16: (16 + 3) 3; action 4 + 2 i of rank 0 is the backward of i.
  EXPECT_THAT(other, HasSubstr("makespan 57, bubble 9"));
  EXPECT_THAT(other, HasSubstr("<output>16</output>"));
  EXPECT_THAT(other, HasSubstr("<b>0B8</b> on rank 0"));
  EXPECT_GT(std::filesystem::file_size(picture), 20'000U);
  std::filesystem::remove_all(folder);
}

TEST(PageOfARunInTheBrowser, HasCurvesAndTimeline) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("millrace_run_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const std::string page = (folder / "run.html").string();
  const std::string picture = (folder / "run.png").string();
  const std::string browser =
      "timeout 120 chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
      "--disable-background-networking --disable-component-update --disable-sync "
      "--window-size=1400,1200 --user-data-dir=" +
      (folder / "profile").string();
  ASSERT_EQ(command("train --epochs 2 -p 2 -m 4 --report " + page).code, 0);

  const std::string dom = shell(browser + " --dump-dom 'file://" + page + "' 2>/dev/null");
  shell(browser + " --screenshot=" + picture + " 'file://" + page + "' 2>/dev/null");

  // The table of a rank's time is as wide as its frame in a window of 1,300 pixels.
  std::ofstream(page, std::ios::app)
      << "<script>const frame = document.querySelector('.wide');"
         "document.title = frame.scrollWidth <= frame.clientWidth ? 'it fits' : 'too wide';"
         "</script>";
  const std::string narrow =
      shell(browser + " --window-size=1300,1200 --dump-dom 'file://" + page + "' 2>/dev/null");

  EXPECT_THAT(narrow, HasSubstr("<title>it fits</title>"));
  EXPECT_THAT(dom, HasSubstr("24 steps, 2874 samples"));
  EXPECT_THAT(dom, HasSubstr("bottleneck: "));
  EXPECT_THAT(dom, HasSubstr("aria-label=\"gradient norm\""));
  EXPECT_THAT(dom, HasSubstr("<td>rank 1</td>"));
  EXPECT_THAT(dom, HasSubstr("The last step"));
  EXPECT_GT(std::filesystem::file_size(picture), 40'000U);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace millrace::test
