// Pictures of a timeline, simulated or measured: text for a terminal, SVG for a paper, a trace for
// Perfetto and Chrome, a page to explore. All return the text; files are written by the caller.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/text.hpp"

namespace millrace {

struct AsciiOptions {
  bool colour = false;  ///< ANSI colours by op
  int columns = 0;      ///< most characters of a line; 0 = as many as unit slots need
};

/// Draws one line per rank: a slot is as long as the shortest op, a forward shows its micro-batch,
/// a backward B and the micro-batch (I, W and R likewise), = fills longer ops, a dot is an idle
/// slot. With chunks or replicas a letter per chunk stands before the micro-batch. A rank that
/// waits for a gradient all-reduce shows +.
/// Precondition of all pictures: the timeline has the program's actions, else InvalidArgument.
/// Cost: O(actions + characters).
///
///   rank 0 | 0 1 . .B0== .B1==
///   rank 1 | . 0B0== 1B1== . .
[[nodiscard]] std::string draw_ascii(const Program& program,
                                     const Timeline& timeline,
                                     const AsciiOptions& options = {});

/// Draws the order of a program that need not be able to run: a line per rank, a column per
/// position, the marked actions in brackets. A mark behind a rank's last action shows as [-]. Of
/// long lists the `around` columns on each side of a mark are shown, of many ranks the marked ones
/// and their neighbours. Cost: O(ranks (1 + marks around)).
///
///   action |   0      1      2      3
///   rank 0 |  0F0   [0B0]   0F1    0B1
///   rank 1 |  1F0   [1F1]   1B0    1B1
[[nodiscard]] std::string draw_order(const Program& program,
                                     const std::vector<ActionPlace>& marks,
                                     int around = 5);

/// Draws an SVG 1.1 picture: a bar per rank with a box per action (colour by op, shade by chunk or
/// replica, micro-batch number inside), idle time as grey ground, legend, time axis, and the memory
/// held by each rank under it when `cost` has a memory model. Where a model has skip edges, a thin
/// arrow per edge and unit goes from the forward that makes a tensor to the one that uses it, here
/// and in the page. Gradient all-reduces are bars of their own under the row of their
/// rank. Text in a generic sans-serif font.
/// Throws InvalidArgument above 400,000 actions. Cost: O(actions).
[[nodiscard]] std::string draw_svg(const Program& program,
                                   const Timeline& timeline,
                                   const Cost& cost,
                                   const std::string& title = "");

/// A program and one timeline of it.
/// Thread-safety: immutable, share freely.
struct Drawing {
  Program program;
  Timeline timeline;
};

/// One schedule of a picture of several.
/// Thread-safety: immutable, share freely.
struct Panel {
  Drawing drawing;
  Cost cost;          ///< for the memory; a cost without a memory model draws none
  std::string title;  ///< over the bars
};

/// Draws several schedules under one another, as above, with the same pixels per unit of time and
/// of memory: lengths and heights compare. A row's grey ground ends where its schedule does.
/// Throws InvalidArgument for an empty list or above 400,000 actions in all. Cost: O(actions).
[[nodiscard]] std::string draw_svg(const std::vector<Panel>& schedules);

/// Writes a page without external resources: the picture with zoom (wheel, drag, keys), what an
/// action is, when it ran and what it waited for under the mouse, memory below, and sliders that
/// rescale the costs and replay the schedule in the page. `others` are the same schedule with
/// other numbers of micro-batches and the same costs; a slider chooses among them.
/// `#hover=RANK,INDEX` in the address opens the page with the mouse on that action, `#m=COUNT`
/// with that number of micro-batches (both: `#m=COUNT&hover=RANK,INDEX`). Throws InvalidArgument
/// above 400,000 actions in all. Cost: O(actions).
[[nodiscard]] std::string draw_html(const Program& program,
                                    const Timeline& timeline,
                                    const Cost& cost,
                                    const std::string& title = "",
                                    const std::vector<Drawing>& others = {});

/// Writes trace-event JSON for Perfetto (ui.perfetto.dev) and chrome://tracing: a thread per rank,
/// an event per action with the action in its args, a flow arrow per message between ranks. One
/// unit of the timeline (a second, when measured) is written as one second. Cost: O(actions).
[[nodiscard]] std::string draw_trace(const Program& program, const Timeline& timeline);

/// The timeline, or why there is none: exactly one of the two members is filled.
/// Thread-safety: immutable, share freely.
struct ParsedTimeline {
  std::optional<Timeline> timeline;  ///< in seconds, ticks_per_unit = 1
  std::vector<Diagnostic> diagnostics;
};

/// Reads back a trace that draw_trace wrote for this program; events without an action of the
/// program's text in args.action are passed over. Every compute action must occur once;
/// an action without an event of its own (a message, in a trace of compute) takes no time, at the
/// end of its predecessor. Cost: O(actions + length of the text).
[[nodiscard]] ParsedTimeline read_trace(std::string_view text, const Program& program);

/// Writes a page without external resources: for every schedule of the catalogue its names, what
/// it needs, its closed forms and source, the figures of a simulation with F = I = W = 1, and the
/// picture with the memory of every rank. A schedule that has no meaning with these counts says
/// why instead. Throws InvalidArgument for counts below 1. Cost: O(actions of all).
[[nodiscard]] std::string draw_gallery(int ranks = 4, int micro_batches = 8);

}  // namespace millrace
