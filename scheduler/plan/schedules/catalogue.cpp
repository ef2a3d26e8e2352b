// The catalogue: one row per published schedule, found by name, generated with checked options.
#include <algorithm>
#include <array>
#include <string>

#include "core/edit_distance.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "plan/schedules/families.hpp"

namespace millrace {

namespace {

using generators::Grouping;
using generators::kFused;
using generators::phase_program;
using generators::PhaseRow;

// Columns: grouping, warm-up slope, lag per rank, forwards first, forward only, more, pairs.
constexpr PhaseRow kForwardsFirst{Grouping::Whole, 1, kFused, true};
constexpr PhaseRow kOneFOneB{Grouping::Whole, 1, kFused, false};
constexpr PhaseRow kEager{Grouping::Whole, 2, kFused, false};
constexpr PhaseRow kInterleaved{Grouping::Rounds, 2, kFused, false};
constexpr PhaseRow kInterleavedPairs{.grouping = Grouping::Rounds, .slope = 2, .pairs = true};
constexpr PhaseRow kZbH1{Grouping::Whole, 1, 1, false};
constexpr PhaseRow kInterleavedZb{Grouping::Rounds, 1, 1, false};
constexpr PhaseRow kGroupInterleaved{Grouping::Small, 1, 0, false};
constexpr PhaseRow kGroupedZb{Grouping::Small, 1, 1, false};
constexpr PhaseRow kForward{Grouping::Rounds, 1, kFused, true, true};
constexpr PhaseRow kSeqPipe{Grouping::CyclesOfP, 2, kFused, false};
constexpr PhaseRow kSeqPipeOneChunk{Grouping::CyclesOfP, 1, kFused, false};
constexpr PhaseRow kSeqVpp{Grouping::FullCycles, 2, kFused, false};
constexpr PhaseRow kSeqSmartVpp{Grouping::CyclesOfPq, 1, kFused, false};

constexpr PhaseRow kSlim{Grouping::One, 1, kFused, false};
constexpr PhaseRow kSlimEager{Grouping::One, 2, kFused, false};
constexpr PhaseRow kSlimZb{Grouping::One, 1, 1, false};
constexpr PhaseRow kSlimZbEager{Grouping::One, 2, 1, false};

template <const PhaseRow& row>
Program phase(const generators::Request& options) {
  return phase_program(row, options);
}

Program lifo(const generators::Request& options) {
  generators::Request reversed = options;
  reversed.order = BackwardOrder::Lifo;
  return phase_program(kForwardsFirst, reversed);
}

/// ZB-H1 that holds up to p-1 micro-batches more: from m = 2p-1 the span needs all of them; a
/// single step of fewer ends soonest with m-1 in all.
Program zb_h2(const generators::Request& options) {
  const int ranks = options.ranks, micro_batches = options.micro_batches;
  const bool few = micro_batches >= ranks && micro_batches < 2 * ranks - 1;
  PhaseRow row = kZbH1;
  row.more = few ? std::max(ranks, micro_batches - 1) - ranks : ranks - 1;
  return phase_program(row, options);
}

Program seqpipe(const generators::Request& options) {
  return phase_program(options.chunks == 1 ? kSeqPipeOneChunk : kSeqPipe, options);
}

constexpr std::array kEntries = {
    ScheduleEntry{.name = "gpipe",
                  .title = "GPipe (fill-drain)",
                  .needs = "m >= 1",
                  .bubble = "(p-1)(F+B)",
                  .peak = "m",
                  .source = "Huang et al. 2019",
                  .own = {"order"},
                  .generate = phase<kForwardsFirst>},
    ScheduleEntry{.name = "gpipe-lifo",
                  .title = "GPipe, last micro-batch first in the backward",
                  .needs = "m >= 1",
                  .bubble = "(p-1)(F+B)",
                  .peak = "m",
                  .source = "torchgpipe, Alpa",
                  .generate = lifo},
    ScheduleEntry{.name = "1f1b",
                  .title = "1F1B (PipeDream-flush, DAPPLE)",
                  .needs = "m >= 1",
                  .bubble = "(p-1)(F+B)",
                  .peak = "min(p-r, m)",
                  .source = "Narayanan et al. 2021, Fan et al. 2021",
                  .generate = phase<kOneFOneB>},
    ScheduleEntry{.name = "eager-1f1b",
                  .title = "Eager 1F1B (overlap friendly)",
                  .needs = "m >= 1",
                  .bubble = "(p-1)(F+B), hides latency",
                  .peak = "min(2(p-r)-1, m)",
                  .source = "Alpa, JaxPP",
                  .generate = phase<kEager>},
    ScheduleEntry{.name = "interleaved",
                  .title = "Interleaved 1F1B",
                  .needs = "m >= 1; group g in p..m, last group full or >= p; default the "
                           "smallest g",
                  .bubble = "(p-1)(F+B)/v for m >= p",
                  .peak = "min(((v-1)g + 2(p-1-r) + 1)/v, m)",
                  .source = "Narayanan et al. 2021 (Megatron-LM)",
                  .own = {"chunks", "group"},
                  .generate = phase<kInterleaved>},
    ScheduleEntry{.name = "interleaved-pairs",
                  .title = "Interleaved 1F1B, forward and backward overlapped",
                  .needs = "m >= 1; group g in p..m, last group full or >= p; default the "
                           "smallest g",
                  .bubble = "(p-1)(2FB-F-B)/v for m >= 2p, pairs of cost FB",
                  .peak = "min(((v-1)g + 2(p-1-r) + 2)/v, m)",
                  .source = "Megatron-LM, MindSpore",
                  .own = {"chunks", "group"},
                  .generate = phase<kInterleavedPairs>},
    ScheduleEntry{.name = "bfs",
                  .title = "Looped breadth-first",
                  .needs = "m >= 1",
                  .bubble = "(p-1)(F+B)/v for m >= p",
                  .peak = "m",
                  .source = "Lamy-Poirier 2022",
                  .own = {"chunks", "order"},
                  .generate = phase<kForwardsFirst>},
    ScheduleEntry{.name = "bfs-lifo",
                  .title = "Looped breadth-first, last micro-batch first in the backward",
                  .needs = "m >= 1",
                  .bubble = "(p-1)(F+B)/v for m >= p",
                  .peak = "m",
                  .source = "PyTorch",
                  .own = {"chunks"},
                  .generate = lifo},
    ScheduleEntry{.name = "bfs-balanced",
                  .title = "Looped breadth-first, balanced memory",
                  .needs = "m >= 1",
                  .bubble = "(p-1)(F+B)/v for m >= p",
                  .peak = "min(((v-1)m + p-r)/v, m)",
                  .source = "PaddlePaddle",
                  .own = {"chunks"},
                  .generate = phase<kOneFOneB>},
    ScheduleEntry{.name = "zb-h1",
                  .title = "ZB-H1 (ZB-1p)",
                  .needs = "m >= 1; m >= p for the full gain",
                  .bubble = "(p-1)(F+I-W) for m >= p, W <= min(F,I)",
                  .peak = "min(p, m)",
                  .source = "Qi et al. 2023",
                  .generate = phase<kZbH1>},
    ScheduleEntry{.name = "zb-h2",
                  .title = "ZB-H2",
                  .needs = "m >= 1; m >= 2p-1 for the full gain",
                  .bubble = "span (p-1) max(0, F+I-2W) for m >= 2p-1, W <= F; makespan >= (p-1)F; "
                            "(p-1)F at F=I=W, m >= p",
                  .peak = "2p-1 for m >= 2p-1; max(p, m-1) for p <= m <= 2p-2",
                  .source = "Qi et al. 2023",
                  .generate = zb_h2},
    ScheduleEntry{.name = "interleaved-zb",
                  .title = "Interleaved zero bubble",
                  .needs = "m >= 1; group g in p..m, last group full or >= p; default the "
                           "smallest g",
                  .bubble = "(p-1)(F+I-W)/v for m >= p, W <= min(F,I)",
                  .peak = "min(((v-1)g + p)/v, m)",
                  .source = "PyTorch",
                  .own = {"chunks", "group"},
                  .generate = phase<kInterleavedZb>},
    ScheduleEntry{.name = "group-interleaved",
                  .title = "Group interleaved (PipeOffload's building block)",
                  .needs = "m >= 1; group g in p/2..p",
                  .bubble = "((p-1)(F+I) + (v-1)(p-g)F)/v at F=I=W, g divides m, m >= p",
                  .peak = "((v-1)g + p-r)/v for g divides m, m >= p",
                  .source = "Wan et al. 2025",
                  .own = {"chunks", "group"},
                  .timed = true,
                  .generate = phase<kGroupInterleaved>},
    ScheduleEntry{
        .name = "grouped-zb",
        .title = "Grouped zero bubble",
        .needs = "m >= 1; group g in p/2..p",
        .bubble = "(p-1 + (v-1)(p-g) + max(0, 2p-1-3g))F/v at F=I=W, v >= 2, g divides m, m >= p",
        .peak = "((v-1)g + p)/v for g divides m, m >= p",
        .source = "millrace",
        .own = {"chunks", "group"},
        .timed = true,
        .generate = phase<kGroupedZb>},
    ScheduleEntry{.name = "zb-v",
                  .title = "ZBV, the written list",
                  .needs = "m >= 1; m >= 2p-1 for the full gain",
                  .bubble = "span (p-1)(max(F,I)-W) for W <= F <= I, m >= 2p-1",
                  .peak = "p for m >= 2p-1",
                  .source = "Qi et al. 2023, PyTorch",
                  .own_chunks = 2,
                  .generate = generators::zb_v},
    ScheduleEntry{.name = "zb-v-auto",
                  .title = "ZBV auto, under a memory limit",
                  .needs = "m >= 1; limit >= p x mem-f (default p)",
                  .bubble = "none: found with the given costs; span 0 at F=I=W, m >= 2p-1",
                  .peak = "<= the limit",
                  .source = "Qi et al. 2024",
                  .own = {"memory_limit"},
                  .timed = true,
                  .own_chunks = 2,
                  .generate = generators::zb_v_auto},
    ScheduleEntry{.name = "v-half",
                  .title = "V-Half",
                  .needs = "m >= 1; m >= 2p-1 for the bubble",
                  .bubble = "(3p-7)/2 F at F=I=W, p even, p >= 4, m >= 2p-1; (3p-4)/2 F at F=I=W, "
                            "p odd, p >= 3, m >= 2p-1; search finds shorter orders",
                  .peak = "(p+2)/2 for m >= p, rounded down",
                  .source = "Qi et al. 2024 (controllable memory)",
                  .relisted = true,
                  .own_chunks = 2,
                  .generate = generators::v_half},
    ScheduleEntry{.name = "v-min",
                  .title = "V-Min",
                  .needs = "m >= 1; m >= 2p for the bubble",
                  .bubble = "(2p - 5/2)F at F=I=W, 3 does not divide p, p >= 2, m >= 2p; (2p - "
                            "7/2)F at F=I=W, 3 divides p, m >= 2p; grows with m where F, I and "
                            "W differ; search finds shorter orders",
                  .peak = "(p+4)/3 for m >= p, rounded down",
                  .source = "Qi et al. 2024 (controllable memory)",
                  .relisted = true,
                  .own_chunks = 2,
                  .generate = generators::v_min},
    ScheduleEntry{
        .name = "v-zb",
        .title = "V-ZB, under a memory limit",
        .needs = "m >= 1; limit >= 2 floor((p+4)/3) chunks for p <= 12 (default 2p chunks)",
        .bubble = "span (3p-1-3k + max(3p, p+1+2ceil(k/2)))F/2 at F=I=W, m >= 2p, k chunks held",
        .peak = "<= the limit",
        .source = "Qi et al. 2024 (controllable memory)",
        .own = {"memory_limit"},
        .timed = true,
        .own_chunks = 2,
        .generate = generators::v_zb},
    ScheduleEntry{.name = "1f1b-v",
                  .title = "1F1B-V",
                  .needs = "m >= 1",
                  .bubble = "(5p-5)/2 F at F=I=W, 3 divides p-1, m >= p; (5p-7)/2 F at F=I=W, 3 "
                            "divides p-2, p >= 5, m >= p; none where 3 divides p",
                  .peak = "2p/3 + 1 for m >= p, rounded down",
                  .source = "Qi et al. 2024 (controllable memory)",
                  .own_chunks = 2,
                  .generate = generators::one_f_one_b_v},
    ScheduleEntry{.name = "zb-auto",
                  .title = "ZB auto, under a memory limit",
                  .needs = "m >= 1; limit >= mem-f + max(0, mem-i) (default p x mem-f)",
                  .bubble = "none: found with the given costs; (p-1)F at limit p, F=I=W, m >= 2p",
                  .peak = "<= the limit",
                  .source = "Qi et al. 2023",
                  .own = {"memory_limit"},
                  .timed = true,
                  .staged = true,
                  .generate = generators::zb_auto},
    ScheduleEntry{.name = "dualpipe",
                  .title = "DualPipe",
                  .needs = "p even; m even, m >= 2p; two replicas",
                  .bubble = "(p/2-1)(FB+B-3W) for F = I, W <= F, pairs of cost FB = F+B",
                  .peak = "p+1",
                  .source = "DeepSeek-AI 2024",
                  .replicas = 2,
                  .generate = generators::dualpipe},
    ScheduleEntry{.name = "dualpipe-v",
                  .title = "DualPipeV (cut in half)",
                  .needs = "m >= 2p",
                  .bubble = "(p-1)(F+I-W)/2 for F = I, W <= F, halves of a pair one by one",
                  .peak = "p + 1/2",
                  .source = "Sea AI, DeepSeek 2025",
                  .own_chunks = 2,
                  .generate = generators::dualpipe_v},
    ScheduleEntry{.name = "stp",
                  .title = "STP (tensor and pipeline parallelism braided)",
                  .needs = "m >= 3p-1",
                  .bubble = "(p-1)(F+I-W)/2 for W <= min(F,I), halves of a pair one by one",
                  .peak = "(3p + max(1, r))/2",
                  .source = "STP 2025",
                  .own_chunks = 2,
                  .generate = generators::stp},
    ScheduleEntry{.name = "chimera",
                  .title = "Chimera (bidirectional)",
                  .needs = "p even; m a multiple of p; two replicas",
                  .bubble = "(m/p + 1)(p-2)F at B = 2F",
                  .peak = "p/2 + 1 + min(r, p-1-r)",
                  .source = "Li and Hoefler 2021",
                  .replicas = 2,
                  .generate = generators::chimera},
    ScheduleEntry{.name = "bitpipe",
                  .title = "BitPipe (bidirectional, each way a V)",
                  .needs = "p even; m a multiple of p; two replicas",
                  .bubble = "(m/p + 1)(p-2)F/2 at B = 2F",
                  .peak = "(3p/2 + min(r, p-1-r) + 1)/2",
                  .source = "Wu et al. 2024",
                  .own_chunks = 2,
                  .replicas = 2,
                  .generate = generators::bitpipe},
    ScheduleEntry{
        .name = "wave",
        .title = "Wave pipeline (Hanayo)",
        .needs = "m >= 1; w waves, v = 2w",
        .bubble = "2(p-1)F/w at F=I=W, m = p; none elsewhere: list scheduled with the given costs",
        .peak = "<= p",
        .source = "Liu et al. 2023",
        .own = {"waves"},
        .timed = true,
        .own_chunks = 2,
        .generate = generators::wave},
    ScheduleEntry{.name = "seq-1f1b",
                  .title = "Seq1F1B",
                  .needs = "m >= 1; causal slices",
                  .bubble = "(p-1)(F+B)/q",
                  .peak = "min((p-1-r + q)/q, m)",
                  .source = "Sun et al. 2024",
                  .own = {"slices"},
                  .generate = phase<kOneFOneB>},
    ScheduleEntry{
        .name = "seqpipe",
        .title = "SeqPipe",
        .needs = "m >= 1; causal slices",
        .bubble = "(p-1)(F+B)/(vq) for m >= p",
        .peak =
            "min(((p-1-r)b + (v-1)c q + q)/(vq), m), b = min(v,2), c = ceil(m/max(1,floor(m/p)))",
        .source = "MindSpore",
        .own = {"chunks", "slices"},
        .generate = seqpipe},
    ScheduleEntry{.name = "seq-vpp",
                  .title = "SeqVPP",
                  .needs = "q divides p, m q >= p; causal slices",
                  .bubble = "(p-1)(F+B)/(vq)",
                  .peak = "min((2(p-1-r) + (v-1)c q + q)/(vq), m), c = ceil(m/floor(m/floor(p/q)))",
                  .source = "MindSpore",
                  .own = {"chunks", "slices"},
                  .generate = phase<kSeqVpp>},
    ScheduleEntry{.name = "seq-smart-vpp",
                  .title = "SeqSmartVPP",
                  .needs = "p >= q, m q >= p; causal slices",
                  .bubble = "(p-1)(F+B)/(vq) for q divides p",
                  .peak = "min((p-1-r + (v-1)c q + q)/(vq), m), c = ceil(m/floor(m/floor(p/q)))",
                  .source = "MindSpore",
                  .own = {"chunks", "slices"},
                  .generate = phase<kSeqSmartVpp>},
    ScheduleEntry{.name = "slimpipe",
                  .title = "SlimPipe (one micro-batch in at least p slices)",
                  .needs = "q >= p, default p; causal slices",
                  .bubble = "(p-1)(F+B)/(vq)",
                  .peak = "min((p-1-r + vq)/(vq), m)",
                  .source = "SlimPipe 2025, MEPipe 2025",
                  .own = {"chunks", "slices"},
                  .slice_each_rank = true,
                  .generate = phase<kSlim>},
    ScheduleEntry{.name = "slimpipe-eager",
                  .title = "SlimPipe, eager warm-up",
                  .needs = "q >= p, default p; causal slices",
                  .bubble = "(p-1)(F+B)/(vq), hides latency",
                  .peak = "min((2(p-1-r) + vq)/(vq), m)",
                  .source = "SlimPipe 2025, MEPipe 2025",
                  .own = {"chunks", "slices"},
                  .slice_each_rank = true,
                  .generate = phase<kSlimEager>},
    ScheduleEntry{.name = "slimpipe-zb",
                  .title = "SlimPipe, zero bubble",
                  .needs = "q >= p, default p; causal slices",
                  .bubble = "(p-1)(F+I-W)/(vq) at F=I=W, m >= 2",
                  .peak = "min((p-1 + vq)/(vq), m)",
                  .source = "millrace",
                  .own = {"chunks", "slices"},
                  .slice_each_rank = true,
                  .generate = phase<kSlimZb>},
    ScheduleEntry{.name = "slimpipe-zb-eager",
                  .title = "SlimPipe, zero bubble, eager warm-up",
                  .needs = "q >= p, default p; causal slices",
                  .bubble = "(p-1)(F+I-W)/(vq) at F=I=W, m >= 2, hides latency",
                  .peak = "min((2(p-1)-r + vq)/(vq), m)",
                  .source = "millrace",
                  .own = {"chunks", "slices"},
                  .slice_each_rank = true,
                  .generate = phase<kSlimZbEager>},
    ScheduleEntry{.name = "terapipe",
                  .title = "TeraPipe (all slices forward, then backward)",
                  .needs = "m >= 1; causal slices",
                  .bubble = "(p-1)(F+B)/q",
                  .peak = "m",
                  .source = "Li et al. 2021",
                  .own = {"slices"},
                  .generate = phase<kForwardsFirst>},
    ScheduleEntry{.name = "forward",
                  .title = "Forward only (inference)",
                  .needs = "m >= 1",
                  .bubble = "(p-1)F/v for m >= p",
                  .peak = "none kept",
                  .source = "Megatron-LM, DeepSpeed, PyTorch",
                  .own = {"chunks", "group"},
                  .default_chunks = 1,
                  .generate = phase<kForward>},
};

std::string unknown_name(std::string_view name) {
  const auto* const nearest =
      std::min_element(kEntries.begin(), kEntries.end(), [&](const auto& a, const auto& b) {
        return edit_distance(name, a.name) < edit_distance(name, b.name);
      });
  const bool near = edit_distance(name, nearest->name) <= name.size() / 2;
  std::string message = "unknown schedule '" + std::string(name) + "'; " +
                        (near ? "did you mean '" + std::string(nearest->name) + "'? " : "") +
                        "known:";
  for (const ScheduleEntry& entry : kEntries) message += " " + std::string(entry.name);
  return message;
}

/// "interleaved p=4 m=8 v=2".
std::string title_of(const ScheduleEntry& entry, const ScheduleOptions& options) {
  std::string title = std::string(entry.name) + " p=" + std::to_string(options.ranks) +
                      " m=" + std::to_string(options.micro_batches);
  for (const ScheduleParameter& parameter : kScheduleParameters)
    if (const auto* count = std::get_if<std::optional<int> ScheduleOptions::*>(&parameter.field);
        count != nullptr && options.**count)
      title += " " + std::string(parameter.symbol) + "=" + std::to_string(*(options.**count));
  return title;
}

}  // namespace

std::span<const ScheduleEntry> schedules() {
  return kEntries;
}

const ScheduleEntry& find_schedule(std::string_view name) {
  for (const ScheduleEntry& entry : kEntries)
    if (entry.name == name) return entry;
  throw InvalidArgument(unknown_name(name));
}

int chunks_of(const ScheduleEntry& entry, const ScheduleOptions& options) {
  if (entry.takes("chunks")) return options.chunks.value_or(entry.default_chunks);
  constexpr int kMostWaves = 1 << 28;  // far beyond what require_counts lets through
  const int waves = entry.takes("waves") ? options.waves.value_or(1) : 1;
  return entry.own_chunks * std::min(waves, kMostWaves);
}

bool agrees(const ScheduleEntry& entry,
            const ScheduleOptions& options,
            std::string_view parameter) {
  if (entry.takes(parameter)) return true;
  if (parameter == "chunks") return options.chunks == chunks_of(entry, options);
  return parameter == "slices" && options.slices == 1;
}

Program generators::generate(const ScheduleEntry& entry, const Request& request) {
  require_known_options(entry, request);
  const Request filled = with_defaults(entry, request);
  require_counts(filled);
  if (filled.stop && filled.stop()) throw Stopped("stopped before the first action");
  Program program = entry.generate(filled);
  program.name = title_of(entry, filled);
  return program;
}

Program generate(std::string_view name, const ScheduleOptions& options, const Costs& costs) {
  const ScheduleEntry& entry = find_schedule(name);
  return generators::generate(entry, generators::request_of(entry, options, costs));
}

}  // namespace millrace
