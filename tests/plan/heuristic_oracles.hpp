// The two published heuristics once more, as their descriptions read: completion times in tables,
// the steps in order, no shortcut. Oracles of zb-auto and zb-v-auto, op for op; they share no code.
#pragma once

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "millrace/scheduler/plan/generators.hpp"

namespace millrace::testing_plan {

using Orders = std::vector<std::vector<Action>>;

/// What the heuristics are asked for, of equal stages.
struct TimedOptions : ScheduleOptions {
  double forward = 1, input = 1, weight = 1, latency = 0;
  double memory_forward = 1, memory_input = 0, memory_weight = -1;

  [[nodiscard]] Costs costs() const {
    return {.forward = {forward},
            .input = {input},
            .weight = {weight},
            .memory_forward = {memory_forward},
            .memory_input = {memory_input},
            .memory_weight = {memory_weight},
            .latency = {latency}};
  }
};

/// ZB auto (Qi et al. 2023), one run with the three flags.
class ZbAutoOracle {
 public:
  ZbAutoOracle(const TimedOptions& o, double limit, bool a, bool pb, bool g)
      : p(o.ranks),
        m(o.micro_batches),
        comm(o.latency),
        cap(limit),
        A(a),
        PB(pb),
        G(g),
        n(3),
        e(zeros()),
        u(zeros()),
        b(zeros()),
        orders(e.size()) {
    c = {o.forward, o.input, o.weight};
    mem = {o.memory_forward, o.memory_input, o.memory_weight};
    for (auto& counts : n) counts.assign(e.size(), 0);
  }

  bool run() {
    for (int j = 0; j < p; ++j) {
      if (mem[F] > cap) return false;
      place(j, F);
    }
    const std::vector<int> x = extra();
    for (int j = 0; j < p; ++j)
      for (int k = 0; k < x[at(j)]; ++k) place(j, F);
    for (int j = p - 1; j >= 0; --j) place(j, B);
    for (int i = 1; i < m; ++i)
      if (!forwards() || !backwards(i)) return false;
    for (int j = 0; j < p; ++j)
      while (n[W][at(j)] < n[B][at(j)]) place(j, W);
    return true;
  }

  /// The largest over stages of the last W's end minus the first F's end plus F.
  [[nodiscard]] double score() const {
    double most = -std::numeric_limits<double>::infinity();
    for (int j = 0; j < p; ++j) most = std::max(most, T.at({W, j, m - 1}) - T.at({F, j, 0}) + c[F]);
    return most;
  }

  Orders orders_of_ranks() const { return orders; }

 private:
  enum Kind : std::size_t { F, B, W };
  static std::size_t at(int j) { return static_cast<std::size_t>(j); }
  [[nodiscard]] std::vector<double> zeros() const { return std::vector<double>(at(p), 0); }

  void place(int j, Kind k) {
    const int i = n[k][at(j)];
    double finish = e[at(j)] + c[k];
    if (k == F && j > 0) finish = std::max(finish, T.at({F, j - 1, i}) + comm + c[F]);
    if (k == B && j < p - 1) finish = std::max(finish, T.at({B, j + 1, i}) + comm + c[B]);
    if (n[F][at(j)] > 0) b[at(j)] += finish - (e[at(j)] + c[k]);
    e[at(j)] = finish;
    T[{k, j, i}] = finish;
    u[at(j)] += mem[k];
    ++n[k][at(j)];
    const Op op = k == F ? Op::Forward : k == B ? Op::BackwardInput : Op::BackwardWeight;
    orders[at(j)].push_back(
        {.op = op, .stage = Stage{j}, .micro_batch = MicroBatch{i}, .slice = {}});
  }

  void fill(int j, double t) {
    const auto pending = [&] { return n[W][at(j)] < n[B][at(j)]; };
    while (pending() && e[at(j)] + c[W] <= t) place(j, W);
    const double most = *std::max_element(b.begin(), b.end());
    if (pending() && e[at(j)] < t && (t - e[at(j)] > most - b[at(j)] || G)) place(j, W);
  }

  std::vector<int> extra() {
    std::vector<int> x(e.size(), 0);
    double last = T.at({F, p - 1, 0}) + c[B];
    for (int j = p - 2; j >= 0; --j) {
      double memory = u[at(j)], clock = e[at(j)];
      while (n[F][at(j)] + x[at(j)] < m && memory + mem[F] <= cap) {
        if (A && clock + c[F] > last + comm) break;
        if (!A && clock >= last + comm) break;
        memory += mem[F];
        clock += c[F];
        ++x[at(j)];
      }
      last = std::max(clock, last + comm) + c[B];
    }
    for (int j = 1; j < p; ++j)
      while (x[at(j)] > 0 && x[at(j)] >= x[at(j - 1)] && n[F][at(j)] + x[at(j)] < m) --x[at(j)];
    return x;
  }

  [[nodiscard]] bool decide(int j) const {
    if (!PB || j == p - 1 || n[F][at(j)] < n[F][at(j + 1)] + 2) return true;
    const double nx = e[at(j + 1)] + c[F] + c[B] + comm;
    if (e[at(j)] >= nx) return false;
    double w = 0, memory = u[at(j)];
    for (int pending = n[B][at(j)] - n[W][at(j)]; pending > 0 && memory + mem[F] > cap; --pending) {
      memory += mem[W];
      w += c[W];
    }
    if (e[at(j)] + c[F] + w <= nx) return true;
    return nx - e[at(j)] > *std::max_element(b.begin(), b.end()) - b[at(j)];
  }

  bool room(int j, Kind k) {
    while (u[at(j)] + mem[k] > cap) {
      if (n[W][at(j)] == n[B][at(j)]) return false;
      place(j, W);
    }
    return true;
  }

  bool forwards() {
    std::vector<bool> d(e.size(), true);
    for (int j = 0; j < p; ++j)
      if (n[F][at(j)] < m) d[at(j)] = decide(j);
    for (int j = p - 2; j >= 0; --j) d[at(j)] = d[at(j)] && d[at(j + 1)];
    for (int j = 0; j < p; ++j) {
      if (!d[at(j)] || n[F][at(j)] >= m) continue;
      if (!room(j, F)) return false;
      if (j > 0) fill(j, T.at({F, j - 1, n[F][at(j)]}) + comm);
      place(j, F);
    }
    return true;
  }

  bool backwards(int i) {
    for (int j = p - 1; j >= 0; --j) {
      if (!room(j, B)) return false;
      if (j < p - 1) fill(j, T.at({B, j + 1, i}) + comm);
      if (j == 0 && n[F][0] == m)
        while (n[W][0] < n[B][0]) place(0, W);
      place(j, B);
    }
    return true;
  }

  int p, m;
  double comm, cap;
  bool A, PB, G;
  std::vector<std::vector<int>> n;  // by kind and stage
  std::vector<double> c, mem, e, u, b;
  std::map<std::tuple<Kind, int, int>, double> T;
  Orders orders;
};

/// The best of the eight runs, the first of equals; nothing when no run fits.
inline std::optional<Orders> zb_auto_oracle(const TimedOptions& options) {
  const double cap = options.memory_limit.value_or(options.ranks * options.memory_forward);
  std::optional<ZbAutoOracle> best;
  for (const bool a : {true, false})
    for (const bool pb : {true, false})
      for (const bool g : {true, false}) {
        ZbAutoOracle oracle(options, cap, a, pb, g);
        if (oracle.run() && (!best || oracle.score() < best->score())) best = oracle;
      }
  return best ? std::optional(best->orders_of_ranks()) : std::nullopt;
}

/// ZBV auto (Qi et al. 2024), one run with the two flags and the approved bubbles. Classes 0 to 3
/// are F0, F1, B1, B0; a chunk costs half a stage.
class ZbVAutoOracle {
 public:
  ZbVAutoOracle(
      const TimedOptions& o, double limit, bool fill_b, bool fill_f, std::vector<double> approved)
      : p(o.ranks),
        m(o.micro_batches),
        fF(o.forward / 2),
        fI(o.input / 2),
        fW(o.weight / 2),
        comm(o.latency),
        mF(o.memory_forward / 2),
        mB(o.memory_input / 2),
        mW(o.memory_weight / 2),
        cap(limit),
        fillB(fill_b),
        fillF(fill_f),
        ap(std::move(approved)),
        n(4, std::vector<int>(ap.size(), 0)),
        t(ap.size(), 0),
        u(ap.size(), 0),
        b(ap.size(), 0),
        pending(ap.size()),
        orders(ap.size()) {}

  bool run() {
    for (int r = 0; r < p; ++r) place(0, r);
    warm_up();
    fill_vee();
    for (int round = 0; round < 2 * m; ++round)
      if (!backward_round() || !forward_round()) return false;
    for (int r = 0; r < p; ++r)
      while (!pending[at(r)].empty()) weight(r);
    for (int k = 0; k < 4; ++k)
      for (int r = 0; r < p; ++r)
        if (count(k, r) != m) return false;
    return true;
  }

  [[nodiscard]] double score() const { return std::max(0.0, most(b)); }
  [[nodiscard]] std::vector<double> bubbles() const { return b; }
  [[nodiscard]] Orders orders_of_ranks() const { return orders; }

 private:
  static std::size_t at(int r) { return static_cast<std::size_t>(r); }
  static double most(const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); }
  int& count(int k, int r) { return n[at(k)][at(r)]; }
  [[nodiscard]] double cost(int k) const { return k < 2 ? fF : fI; }
  [[nodiscard]] static int feeder(int k, int r) { return k == 0 || k == 2 ? r - 1 : r + 1; }
  [[nodiscard]] bool inside(int r) const { return r >= 0 && r < p; }

  /// Completion of the same class and index on the feeding neighbour, plus the message; none at the
  /// boundary. Below p x mem-f the filling of the V may ask before the neighbour has run it: no
  /// wait.
  std::optional<double> arrival(int k, int r) {
    const int from = feeder(k, r);
    if (!inside(from)) return std::nullopt;
    const auto end = T.find({k, from, count(k, r)});
    return (end == T.end() ? 0 : end->second) + comm;
  }
  bool available(int k, int r) {
    const int from = feeder(k, r);
    return !inside(from) || T.count({k, from, count(k, r)}) > 0;
  }

  void add(int r, Op op, int chunk, int i) {
    orders[at(r)].push_back({.op = op,
                             .stage = Stage{chunk == 0 ? r : 2 * p - 1 - r},
                             .micro_batch = MicroBatch{i},
                             .slice = {}});
  }

  void place(int k, int r) {
    const double finish = std::max(t[at(r)] + cost(k), arrival(k, r).value_or(0) + cost(k));
    if (count(0, r) > 0) b[at(r)] += finish - (t[at(r)] + cost(k));
    t[at(r)] = finish;
    const int i = count(k, r)++;
    T[{k, r, i}] = finish;
    u[at(r)] += k < 2 ? mF : mB;
    const int chunk = k == 1 || k == 2 ? 1 : 0;
    add(r, k < 2 ? Op::Forward : Op::BackwardInput, chunk, i);
    if (k >= 2) pending[at(r)].emplace_back(chunk, i);
  }

  void weight(int r) {
    const auto [chunk, i] = pending[at(r)].front();
    pending[at(r)].pop_front();
    t[at(r)] += fW;
    u[at(r)] += mW;
    add(r, Op::BackwardWeight, chunk, i);
  }

  void prepare(int k, int r, bool take) {
    const std::optional<double> due = arrival(k, r);
    if (!due) return;
    while (!pending[at(r)].empty() && *due >= t[at(r)] + fW) weight(r);
    const double slack = std::max(std::max(0.0, most(b)), most(ap) - ap[at(r)]) - b[at(r)];
    if (!pending[at(r)].empty() && take && *due - t[at(r)] > slack) weight(r);
  }

  bool room(int r, double change) {
    while (u[at(r)] + change > cap) {
      if (pending[at(r)].empty()) return false;
      weight(r);
    }
    return true;
  }

  void warm_up() {
    for (int r = p - 1; r >= 0; --r) {
      if (r < p - 1) {
        const double limit = T.at({1, r + 1, 0}) + comm;
        while (u[at(r)] + mF * (2 + 2 * r) <= cap && t[at(r)] + fF <= limit && count(0, r) < m)
          for (int below = 0; below <= r; ++below) place(0, below);
      }
      place(1, r);
    }
  }

  void fill_vee() {
    int k = 0;
    for (int r = 1; r < p; ++r)
      while (count(0, r) + count(1, r) < count(0, r - 1) + count(1, r - 1) ||
             (count(1, r) <= count(1, r - 1) && count(1, r - 1) < m)) {
        for (int j = p - 1; j >= r; --j)
          if (count(k, j) < m) place(k, j);
        k = 1 - k;
      }
  }

  bool backward_round() {
    for (int r = 0; r < p; ++r)
      if (!room(r, mB)) return false;
    std::vector<int> chosen;
    for (int r = 0; r < p; ++r) {
      int k = 2;
      if (count(3, r) < count(2, r)) k = r == p - 1 || available(3, r) || count(2, r) >= m ? 3 : 2;
      chosen.push_back(k);
    }
    for (int r = p - 1; r >= 0; --r)
      if (chosen[at(r)] == 3 && !step(3, r, true)) return false;
    for (int r = 0; r < p; ++r)
      if (chosen[at(r)] == 2 && !step(2, r, fillB)) return false;
    return true;
  }

  bool step(int k, int r, bool take) {
    if (count(k, r) >= m || !available(k, r)) return false;
    prepare(k, r, take);
    place(k, r);
    return true;
  }

  bool forward_round() {
    for (int r = 0; r < p; ++r) {
      if (count(1, r) >= m) continue;
      int k = 0;
      if (count(1, r) < count(0, r)) {
        if (r == p - 1 || available(1, r))
          k = 1;
        else if (count(0, r) >= m || !available(0, r))
          continue;
      }
      if (!available(k, r) || !room(r, mF)) return false;
      prepare(k, r, fillF);
      place(k, r);
    }
    return true;
  }

  int p, m;
  double fF, fI, fW, comm, mF, mB, mW, cap;
  bool fillB, fillF;
  std::vector<double> ap;
  std::vector<std::vector<int>> n;  // by class and rank
  std::vector<double> t, u, b;
  std::vector<std::deque<std::pair<int, int>>> pending;
  std::map<std::tuple<int, int, int>, double> T;
  Orders orders;
};

/// Best over both flags; each is run again with its own bubbles approved while that helps.
inline std::optional<Orders> zb_v_auto_oracle(const TimedOptions& options) {
  const double cap = options.memory_limit.value_or(options.ranks * options.memory_forward);
  std::optional<ZbVAutoOracle> best;
  for (const bool fill_b : {true, false})
    for (const bool fill_f : {true, false}) {
      std::vector<double> approved(static_cast<std::size_t>(options.ranks), -1);
      bool first = true;
      while (true) {
        ZbVAutoOracle oracle(options, cap, fill_b, fill_f, approved);
        if (!oracle.run()) break;
        const double worst = *std::max_element(approved.begin(), approved.end());
        const bool again = first || oracle.score() < worst;
        if (!best || oracle.score() < best->score()) best.emplace(oracle);
        if (!again) break;
        approved = oracle.bubbles();
        first = false;
      }
    }
  return best ? std::optional(best->orders_of_ranks()) : std::nullopt;
}

}  // namespace millrace::testing_plan
