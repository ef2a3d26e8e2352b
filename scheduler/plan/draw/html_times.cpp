// The page's own clock: what it knows of a schedule, its memory and sums over copies, and the
// replay with other times when a slider has moved.
#include "plan/draw/html_page.hpp"

namespace millrace::picture {

const char* const kPageTimes = R"page(
<div id="figures"></div><div id="legend"></div>
<div id="controls"></div>
<canvas id="picture"></canvas>
<div id="ranks"></div>
<div id="help">Wheel or + and - zoom, drag or arrow keys move, 0 shows all. The lower part is the memory each rank holds.</div>
<div id="tip" role="tooltip"></div>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const [OP, REPLICA, STAGE, MICRO, SLICE, CHUNK, START, END, PRODUCERS] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
const NAMES = ["forward", "backward", "backward-input", "backward-weight", "recompute", "send of the activation",
  "receive of the activation", "send of the gradient", "receive of the gradient", "gradient reduction", "optimizer step"];
const SKIP = "#c2185bbf";
const canvas = document.getElementById("picture"), tip = document.getElementById("tip");
const pen = canvas.getContext("2d");
const number = x => Number(x.toPrecision(6)).toString();
const units = ticks => number(ticks / data.ticks);
let measured, times, first, owner;
// Shows one of the schedules of the page.
function take(ranks) {
  data.ranks = ranks;
  measured = ranks.map(rank => rank.map(a => [a[START], a[END]]));
  times = measured;
  first = []; owner = [];
  for (const [r, rank] of ranks.entries()) {
    first.push(owner.length);
    for (let i = 0; i < rank.length; ++i) owner.push(r);
  }
}
const wantedM = /m=(\d+)/.exec(location.hash);
let chosen = data.counts.indexOf(wantedM ? +wantedM[1] : data.count);
if (chosen < 0) chosen = data.counts.indexOf(data.count);
take(data.schedules[chosen]);
const actionOf = node => data.ranks[owner[node]][node - first[owner[node]]];
const timeOf = node => times[owner[node]][node - first[owner[node]]];
const unit = a => a[OP] > 8 ? "" : a[MICRO] + (data.slices > 1 ? "." + a[SLICE] : "");
const nameOf = a => a[STAGE] + (a[REPLICA] ? "'" : "") + data.letters[a[OP]] + unit(a);

function memoryOf(r) {
  const steps = [], m = data.memory, per = data.slices;
  const at = (list, s) => (list.length ? list[s] : 0) / per;
  const recomputes = data.ranks.some(rank => rank.some(a => a[OP] === 4));
  data.ranks[r].forEach((a, i) => {
    const [start, end] = times[r][i], s = a[STAGE], boundary = at(m.boundary, s);
    if (a[OP] === 0) steps.push([start, recomputes ? boundary : at(m.forward, s)]);
    if (a[OP] === 4) steps.push([start, at(m.forward, s) - boundary]);
    if (a[OP] === 1 || a[OP] === 2) {
      const inside = Math.max(0, at(m.peak, s), a[OP] === 1 ? at(m.input, s) : 0);
      steps.push([start, inside]);
      steps.push([end, at(m.input, s) - inside]);
    }
    if (a[OP] === 1 || a[OP] === 3) steps.push([end, at(m.weight, s)]);
  });
  steps.sort((a, b) => a[0] - b[0]);
  const curve = [[0, 0]];
  for (const [time, change] of steps) {
    const last = curve[curve.length - 1];
    if (last[0] === time) last[1] += change; else curve.push([time, last[1] + change]);
  }
  return curve;
}

// Sums over copies of the pipeline: start and end, one after the other on the link of their rank.
// Their latencies are those of the slider, where it was moved.
let sumLatency = null;
function sumTimes(ran) {
  const free = data.ranks.map(() => -Infinity);
  return data.sums[chosen].map(([r, last, , transfer, delay]) => {
    if (!ran[r][last]) return null;
    const start = Math.max(free[r], ran[r][last][1]);
    free[r] = start + transfer;
    return [start, free[r] + (sumLatency === null ? delay : 2 * sumLatency)];
  });
}
// What the k-th REDUCE_GRAD waits for on other ranks: which sum, when it leaves, when it is there.
function givenTo(k, ran, ends) {
  return data.sums[chosen][k][6].map(([from, transfer, delay]) => {
    const [r, , , , , before] = data.sums[chosen][from];
    const leaves = Math.max(ends[from][1], ran[r][before][1]);
    return [from, leaves, leaves + transfer + (sumLatency === null ? delay : sumLatency)];
  });
}
function endOfSums(k, ran) {
  const ends = sumTimes(ran);
  return Math.max(ends[k][1], ...givenTo(k, ran, ends).map(given => given[2]));
}

// Runs the same order with rescaled times: as early as rank and producers allow.
function replay(scale, latency) {
  const result = data.ranks.map(rank => new Array(rank.length)), next = data.ranks.map(() => 0);
  const sumOf = data.ranks.map(() => ({}));
  data.sums[chosen].forEach(([r, , reduction], k) => { sumOf[r][reduction] = k; });
  const done = node => result[owner[node]][node - first[owner[node]]];
  for (let moved = true; moved;) {
    moved = false;
    for (let r = 0; r < data.ranks.length; ++r)
      while (next[r] < data.ranks[r].length) {
        const i = next[r], a = data.ranks[r][i];
        if (!a[PRODUCERS].every(node => done(node))) break;
        let start = i ? result[r][i - 1][1] : 0;
        for (const node of a[PRODUCERS])
          start = Math.max(start, done(node)[1] + (owner[node] === r ? 0 : latency));
        const length = measured[r][i][1] - measured[r][i][0], share = data.inputShare;
        const factor = [scale.f, share * scale.i + (1 - share) * scale.w, scale.i, scale.w, scale.f][a[OP]] ?? 1;
        const free = i ? result[r][i - 1][1] : 0;
        result[r][i] = i in sumOf[r] ? [free, Math.max(start, endOfSums(sumOf[r][i], result))]
          : [start, start + length * factor];
        ++next[r];
        moved = true;
      }
  }
  return result;
}

)page";

}  // namespace millrace::picture
