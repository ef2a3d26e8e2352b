// PyTorch's schedule CSV. Reading is two steps: rows to actions with their places, then the shape
// that these actions imply. Nothing is allocated from a number that the text merely mentions.
#include <algorithm>
#include <map>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "plan/text/action_text.hpp"

namespace millrace {

namespace {

constexpr std::size_t kMostFaultyLines = 100;
constexpr std::string_view kBlank = " \t\r";

struct Place {
  std::size_t line = 1;
  std::size_t column = 1;
};

struct Piece {
  std::string_view text;
  std::size_t column = 1;
};

Piece trimmed(Piece piece) {
  const std::size_t first = piece.text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {{}, piece.column};
  const std::size_t last = piece.text.find_last_not_of(kBlank);
  return {piece.text.substr(first, last - first + 1), piece.column + first};
}

constexpr const char* kCsvPair = " one F with one B or I, the pairs of the schedule CSV";

class CsvReader {
 public:
  explicit CsvReader(const CsvOptions& options)
      : options_(options),
        grammar_(options.old_letters ? ActionGrammar::OldCsv : ActionGrammar::Csv) {}

  ParsedProgram read(std::string_view text) {
    std::size_t line = 0;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      read_line(text.substr(0, end), ++line);
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (program_.ranks.empty())
      complain({1, 1}, "there is no row; a schedule has one row per rank");
    if (diagnostics_.empty()) derive_shape();
    if (!diagnostics_.empty()) return {std::nullopt, std::move(diagnostics_)};
    return {std::move(program_), {}};
  }

 private:
  void complain(Place place, std::string message, CsvCure cure = CsvCure::None) {
    if (diagnostics_.size() < kMostFaultyLines)
      diagnostics_.push_back({place.line, place.column, std::move(message), cure});
  }

  void read_line(std::string_view line, std::size_t number) {
    if (line.starts_with('#')) return;
    if (trimmed({line}).text.empty()) {
      blank_lines_.push_back(number);
      return;
    }
    for (const std::size_t blank : blank_lines_)
      complain({blank, 1}, "the row is empty; every rank has at least one action");
    blank_lines_.clear();
    program_.ranks.emplace_back();
    first_place_.push_back({number, 1});
    std::size_t column = 1;
    for (bool more = true; more;) {
      const std::size_t comma = line.find(',');
      more = comma != std::string_view::npos;
      read_cell(trimmed({line.substr(0, comma), column}), number);
      if (more) line.remove_prefix(comma + 1);
      column += comma + 1;
    }
    if (program_.ranks.back().empty() && diagnostics_.empty())
      complain({number, 1}, "the row has no action; every rank has at least one");
  }

  void read_cell(Piece cell, std::size_t line) {
    if (cell.text.empty()) return;
    if (!cell.text.starts_with('(')) {
      read_action(cell, line, false);
      return;
    }
    const Place place{line, cell.column};
    const std::size_t close = cell.text.find(')');
    const std::size_t middle = cell.text.find(';');
    if (close == std::string_view::npos)
      return complain(place, "the pair has no closing parenthesis");
    if (cell.text.substr(close) != ")OVERLAP_F_B")
      return complain({line, cell.column + close}, "a pair ends in ')OVERLAP_F_B'");
    if (middle >= close) return complain(place, "a pair is two actions separated by a semicolon");
    const auto& list = program_.ranks.back();
    const std::size_t before = list.size();
    read_action({cell.text.substr(1, middle - 1), cell.column + 1}, line, true);
    read_action(
        {cell.text.substr(middle + 1, close - middle - 1), cell.column + middle + 1}, line, false);
    if (list.size() == before + 2 && !is_csv_pair(list[before], list.back()))
      complain(place, std::string("the pair is not") + kCsvPair);
  }

  void read_action(Piece piece, std::size_t line, bool with_next) {
    ScannedAction scanned = scan_action(piece.text, grammar_);
    const Place place{line, piece.column + scanned.offset};
    if (!scanned.message.empty())
      return complain(place,
                      std::move(scanned.message),
                      scanned.old_letter ? CsvCure::OldLetters : CsvCure::None);
    if (scanned.sharding && options_.skip_sharding) return;
    if (scanned.sharding)
      return complain(
          place,
          "UNSHARD and RESHARD move parameters, which a millrace program does not have; "
          "skip them by option",
          CsvCure::SkipSharding);
    scanned.action.with_next = with_next;
    note(scanned.action, place);
    program_.ranks.back().push_back(scanned.action);
  }

  // Remembers what derive_shape needs: where each stage is, the largest micro-batch.
  void note(const Action& action, Place place) {
    const Rank rank{static_cast<std::int32_t>(program_.ranks.size()) - 1};
    const auto [entry, fresh] = rank_of_.try_emplace(action.stage, rank);
    if (entry->second != rank)
      complain(place,
               "stage " + std::to_string(action.stage.value) + " is on rank " +
                   std::to_string(entry->second.value) + " already (line " +
                   std::to_string(first_place_[entry->second.index()].line) +
                   "); this grammar has one rank per stage");
    if (action.micro_batch > largest_) {
      largest_ = action.micro_batch;
      largest_place_ = place;
    }
    backward_ = backward_ || (action.op != Op::Forward && action.op != Op::SendForward &&
                              action.op != Op::RecvForward);
  }

  void derive_shape() {
    std::int32_t next = 0;
    for (const auto& [stage, rank] : rank_of_) {
      if (stage.value != next)
        return complain(first_place_[rank.index()],
                        "stage " + std::to_string(next) + " does not occur, but stage " +
                            std::to_string(stage.value) + " does");
      ++next;
    }
    // A real program has a forward per stage and micro-batch; the slack leaves room for faulty
    // ones, which verify explains, and keeps later work proportional to the text.
    constexpr std::int64_t slack = 8;
    const std::int64_t micro_batches = std::int64_t{largest_.value} + 1;
    if (micro_batches * next > slack * static_cast<std::int64_t>(program_.size()) + slack)
      return complain(largest_place_,
                      "micro-batch " + std::to_string(largest_.value) + " on " +
                          std::to_string(next) + " stages cannot be: the file has only " +
                          std::to_string(program_.size()) + " actions");
    std::vector<Rank> ranks;
    for (const auto& [stage, rank] : rank_of_) ranks.push_back(rank);
    program_.shape.ranks = static_cast<int>(program_.ranks.size());
    program_.shape.micro_batches = static_cast<int>(micro_batches);
    program_.shape.placement = Placement({std::move(ranks)});
    program_.shape.forward_only = !backward_;
  }

  CsvOptions options_;
  ActionGrammar grammar_;
  Program program_;
  std::vector<Diagnostic> diagnostics_;
  std::vector<std::size_t> blank_lines_;
  std::vector<Place> first_place_;  // of each rank's row
  std::map<Stage, Rank> rank_of_;
  MicroBatch largest_;
  Place largest_place_;
  bool backward_ = false;
};

void require_sayable(const Program& program) {
  constexpr const char* hint = "; a plan file (JSON) says it";
  require(program.shape.replicas() <= 1,
          "the schedule has " + std::to_string(program.shape.replicas()) +
              " replicas, and the schedule CSV has no sign for a replica" + hint);
  require(program.shape.slices <= 1,
          "the schedule has " + std::to_string(program.shape.slices) +
              " slices per micro-batch, and the schedule CSV has no sign for a slice" + hint);
  require(program.shape.edges.empty(),
          std::string(
              "the stages of the schedule are no chain, and the schedule CSV has no sign for ") +
              "an edge between others" + hint);
  require(program.shape.ties.empty(),
          std::string("weights of the schedule's stages are tied, and the schedule CSV has no sign "
                      "for a tie") +
              hint);
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    const auto& list = program.ranks[rank];
    require(!list.empty(),
            "rank " + std::to_string(rank) +
                " has no action, and a row of the schedule CSV has at least one" + hint);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Op op = list[i].op;
      require(op != Op::Recompute && op != Op::OptimizerStep,
              "the schedule has " + to_string(list[i]) + " on rank " + std::to_string(rank) +
                  ", and the schedule CSV has no sign for " + letters(op) + hint);
      if (!list[i].with_next) continue;
      const std::string pair =
          "the pair at " + to_string(list[i]) + " on rank " + std::to_string(rank);
      require(i + 1 < list.size() && !list[i + 1].with_next,
              pair + " does not have exactly two halves");
      require(is_csv_pair(list[i], list[i + 1]), pair + " is not" + kCsvPair + hint);
    }
  }
}

}  // namespace

std::string to_string(const Diagnostic& diagnostic) {
  return std::to_string(diagnostic.line) + ":" + std::to_string(diagnostic.column) + ": " +
         diagnostic.message;
}

ParsedProgram read_csv(std::string_view text, const CsvOptions& options) {
  return CsvReader(options).read(text);
}

std::string write_csv(const Program& program) {
  require_sayable(program);
  std::string text;
  for (const auto& list : program.ranks) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0) text += ',';
      if (list[i].with_next) {
        text += '(' + to_string(list[i]) + ';' + to_string(list[i + 1]) + ")OVERLAP_F_B";
        ++i;
      } else {
        text += to_string(list[i]);
      }
    }
    text += '\n';
  }
  return text;
}

}  // namespace millrace
