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
  const passOf = a => [a[REPLICA], a[STAGE], a[MICRO], a[SLICE]].join();
  const again = new Set(data.ranks[r].filter(a => a[OP] === 4).map(passOf));
  data.ranks[r].forEach((a, i) => {
    const [start, end] = times[r][i], s = a[STAGE], boundary = at(m.boundary, s);
    const kept = a[OP] === 0 && again.has(passOf(a)) ? boundary : at(m.forward, s);
    if (a[OP] === 0) steps.push([start, kept]);
    if (a[OP] === 4) steps.push([start, kept - boundary]);
    if (a[OP] === 0 || a[OP] === 4) {
      const inside = Math.max(0, at(m.forwardPeak, s) - kept);
      steps.push([start, inside], [end, -inside]);
    }
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

let curves, extent, highest, sums;
function refresh() {
  const all = times.flat();
  extent = all.reduce((e, t) => [Math.min(e[0], t[0]), Math.max(e[1], t[1])], [Infinity, -Infinity]);
  curves = data.ranks.map((_, r) => memoryOf(r));
  highest = Math.max(0, ...curves.map(c => c.reduce((most, s) => Math.max(most, s[1]), 0)));
  sums = sumTimes(times);
  const busy = times.map((rank, r) => rank.reduce((sum, t, i) => sum + (data.ranks[r][i][OP] === 9 ? 0 : t[1] - t[0]), 0));
  const span = Math.max(...times.map(rank => rank.length ? rank[rank.length - 1][1] - rank[0][0] : 0));
  const make = extent[1] - extent[0], most = Math.max(...busy);
  const share = x => " (" + (100 * x).toFixed(2) + " %)";
  document.getElementById("figures").textContent =
    "makespan " + units(make) + ", bubble " + units(make - most) + share(1 - most / make) +
    "  \u00b7  span as soon as possible " + units(span) + ", bubble " + units(span - most) + share(1 - most / span) +
    "  \u00b7  peak memory " + number(highest);
}

const LEFT = 62, TOP = 8, GAP = 5, MEMORY = 150;
let rowHeight = 28, view = null, pointer = null;
const plotWidth = () => canvas.clientWidth - LEFT - 14;
const xOf = time => LEFT + (time - view[0]) / (view[1] - view[0]) * plotWidth();
const timeAt = x => view[0] + (x - LEFT) / plotWidth() * (view[1] - view[0]);
const yOf = r => TOP + r * (rowHeight + GAP);
const rowsEnd = () => yOf(data.ranks.length);

function step(length, most) {
  const raw = length / most, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].find(f => f * power >= raw * 0.999999) * power;
}

function draw() {
  rowHeight = data.ranks.length > 24 ? 14 : 28;
  const height = rowsEnd() + 34 + (highest > 0 ? MEMORY + 28 : 0), density = devicePixelRatio || 1;
  canvas.style.height = height + "px";
  canvas.width = Math.round(canvas.clientWidth * density);
  canvas.height = Math.round(height * density);
  pen.setTransform(density, 0, 0, density, 0, 0);
  pen.clearRect(0, 0, canvas.clientWidth, height);
  pen.font = "12px system-ui, Arial, sans-serif";
  pen.textBaseline = "middle";
  for (let r = 0; r < data.ranks.length; ++r) drawRow(r);
  drawSums();
  drawSkips();
  drawAxis();
  if (highest > 0) drawMemory(rowsEnd() + 44);
}

function drawRow(r) {
  const y = yOf(r);
  pen.fillStyle = "#333"; pen.textAlign = "right";
  pen.fillText("rank " + r, LEFT - 8, y + rowHeight / 2);
  pen.save();
  pen.beginPath(); pen.rect(LEFT, y, plotWidth(), rowHeight); pen.clip();
  pen.fillStyle = "#e9e9ec"; pen.fillRect(xOf(extent[0]), y, xOf(extent[1]) - xOf(extent[0]), rowHeight);
  pen.textAlign = "center";
  data.ranks[r].forEach((a, i) => {
    const [start, end] = times[r][i];
    if (end <= start || end < view[0] || start > view[1] || (a[OP] === 9 && sums.length)) return;
    const x = xOf(start), width = xOf(end) - x, colour = data.colours[a[OP]][a[CHUNK]];
    const half = a[9] ? rowHeight / 2 : rowHeight, top = a[9] === 2 ? y + half : y;
    pen.fillStyle = colour[0]; pen.fillRect(x, top, width, half);
    pen.strokeStyle = "#fff"; pen.lineWidth = Math.min(1, width / 4); pen.strokeRect(x, top, width, half);
    const label = unit(a);
    if (width > 7 * label.length + 2 && half > 11) {
      pen.fillStyle = colour[1]; pen.fillText(label, x + width / 2, top + half / 2 + 1);
    }
    if (pointer && pointer.r === r && pointer.i === i) {
      pen.strokeStyle = "#111"; pen.lineWidth = 2; pen.strokeRect(x + 1, top + 1, width - 2, half - 2);
    }
  });
  pen.restore();
}

// Bars in the gap under the row of their rank.
function drawSums() {
  pen.save();
  pen.beginPath(); pen.rect(LEFT, 0, plotWidth(), rowsEnd()); pen.clip();
  pen.fillStyle = data.colours[9][0][0]; pen.strokeStyle = "#fff"; pen.lineWidth = 0.8;
  const bar = (k, start, end) => {
    const y = yOf(data.sums[chosen][k][0]) + rowHeight, x = xOf(start), width = xOf(end) - x;
    pen.fillRect(x, y, width, GAP); pen.strokeRect(x, y, width, GAP);
  };
  sums.forEach(([start, end], k) => {
    bar(k, start, end);
    givenTo(k, times, sums).forEach(([from, leaves, there]) => bar(from, leaves, there));
  });
  pen.restore();
}

// A thin arrow from the end of a forward to the start of the one that uses it; inside a row bent.
function drawSkips() {
  pen.save();
  pen.beginPath(); pen.rect(LEFT, 0, plotWidth(), rowsEnd()); pen.clip();
  pen.strokeStyle = SKIP; pen.lineWidth = 1;
  for (const [r, i, s, j] of data.skips[chosen]) {
    const inside = r === s, row = inside ? 5 : rowHeight / 2, bend = inside ? 8 : 0;
    const x = xOf(times[r][i][1]), y = yOf(r) + row, x2 = xOf(times[s][j][0]), y2 = yOf(s) + row;
    const third = Math.max(8, (x2 - x) / 3);
    pen.beginPath();
    pen.moveTo(x, y); pen.bezierCurveTo(x + third, y - bend, x2 - third, y2 - bend, x2, y2);
    pen.moveTo(x2 - 5, y2 - 3); pen.lineTo(x2, y2); pen.lineTo(x2 - 5, y2 + 3);
    pen.stroke();
  }
  pen.restore();
}

function drawAxis() {
  const y = rowsEnd() + 2, every = step((view[1] - view[0]) / data.ticks, plotWidth() / 70) * data.ticks;
  pen.strokeStyle = "#999"; pen.lineWidth = 1; pen.fillStyle = "#555"; pen.textAlign = "center";
  pen.beginPath(); pen.moveTo(LEFT, y); pen.lineTo(LEFT + plotWidth(), y);
  for (let i = Math.ceil((view[0] - extent[0]) / every - 1e-9); extent[0] + i * every <= view[1] * (1 + 1e-9); ++i) {
    const x = xOf(extent[0] + i * every);
    pen.moveTo(x, y); pen.lineTo(x, y + 5);
    pen.fillText(units(i * every), x, y + 14);
  }
  pen.stroke();
}

function drawMemory(top) {
  const every = step(highest, 4), full = Math.ceil(highest / every - 1e-9) * every;
  const y = value => top + MEMORY - value / full * MEMORY;
  pen.textAlign = "right"; pen.lineWidth = 1;
  for (let i = 0; i * every <= full * 1.000001; ++i) {
    pen.strokeStyle = i ? "#e2e2e6" : "#999"; pen.fillStyle = "#555";
    pen.beginPath(); pen.moveTo(LEFT, y(i * every)); pen.lineTo(LEFT + plotWidth(), y(i * every)); pen.stroke();
    pen.fillText(number(i * every), LEFT - 8, y(i * every));
  }
  pen.save(); pen.beginPath(); pen.rect(LEFT, top - 4, plotWidth(), MEMORY + 8); pen.clip();
  curves.forEach((curve, r) => {
    const chosen = pointer && pointer.r === r;
    pen.strokeStyle = data.lines[r]; pen.lineWidth = chosen ? 3 : 1.5; pen.globalAlpha = pointer && !chosen ? 0.3 : 0.9;
    pen.beginPath(); pen.moveTo(xOf(extent[0]), y(0));
    let last = 0;
    for (const [time, value] of curve) { pen.lineTo(xOf(time), y(last)); pen.lineTo(xOf(time), y(value)); last = value; }
    pen.lineTo(xOf(extent[1]), y(last)); pen.stroke();
  });
  pen.restore();
}

// Which of rank predecessor and producers ended last, and how long the rank stood for it.
function waitSentence(r, i) {
  const a = data.ranks[r][i], start = times[r][i][0], free = i ? times[r][i - 1][1] : extent[0];
  let last = null;
  for (const node of a[PRODUCERS]) if (last === null || timeOf(node)[1] > timeOf(last)[1]) last = node;
  if (start <= free + 1e-9 * (extent[1] - extent[0]))
    return i ? "started at once after " + nameOf(data.ranks[r][i - 1]) : "first action of the rank";
  if (last === null) return "stood " + units(start - free) + " before it";
  return "waited " + units(start - free) + " for " + nameOf(actionOf(last)) +
    (owner[last] === r ? "" : " of rank " + owner[last]) + ", which ended at " + units(timeOf(last)[1] - extent[0]);
}

function memoryAt(r, time) {
  let value = 0;
  for (const step of curves[r]) { if (step[0] > time) break; value = step[1]; }
  return value;
}

function showTip(r, i, x, y) {
  const a = data.ranks[r][i], [start, end] = times[r][i];
  const lines = ["<b>" + nameOf(a) + "</b> on rank " + r,
    NAMES[a[OP]] + " of stage " + a[STAGE] + (data.replicas > 1 ? ", replica " + a[REPLICA] : "") +
      (a[OP] > 8 ? "" : ", micro-batch " + a[MICRO]) + (data.slices > 1 ? ", slice " + a[SLICE] : ""),
    "from " + units(start - extent[0]) + " to " + units(end - extent[0]) + ", takes " + units(end - start),
    waitSentence(r, i)];
  if (highest > 0) lines.push("memory of the rank: " + number(memoryAt(r, start)) + " at its start, " + number(memoryAt(r, end)) + " at its end");
  tip.innerHTML = lines.join("<br>");
  tip.style.display = "block";
  tip.style.left = Math.min(x + 16, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(y + 18, innerHeight - tip.offsetHeight - 8) + "px";
}

function hit(x, y) {
  const r = Math.floor((y - TOP) / (rowHeight + GAP));
  if (r < 0 || r >= data.ranks.length || x < LEFT || y - yOf(r) > rowHeight) return null;
  const time = timeAt(x), lower = y - yOf(r) > rowHeight / 2;
  const i = data.ranks[r].findIndex((a, k) =>
    times[r][k][0] <= time && time < times[r][k][1] && (!a[9] || (a[9] === 2) === lower));
  return i < 0 ? null : { r, i };
}

let dragged = null;
canvas.addEventListener("mousemove", event => {
  const box = canvas.getBoundingClientRect();
  if (dragged !== null) {
    const by = (dragged - event.clientX) / plotWidth() * (view[1] - view[0]);
    dragged = event.clientX;
    return look(view[0] + by, view[1] + by);
  }
  pointer = hit(event.clientX - box.left, event.clientY - box.top);
  if (pointer) showTip(pointer.r, pointer.i, event.clientX, event.clientY); else tip.style.display = "none";
  draw();
});
canvas.addEventListener("mouseleave", () => { pointer = null; tip.style.display = "none"; draw(); });
canvas.addEventListener("mousedown", event => { dragged = event.clientX; });
addEventListener("mouseup", () => { dragged = null; });
canvas.addEventListener("wheel", event => {
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event.clientX - canvas.getBoundingClientRect().left));
}, { passive: false });
addEventListener("keydown", event => {
  const by = (view[1] - view[0]) / 8, middle = (view[0] + view[1]) / 2;
  const act = { "+": () => zoom(0.8, middle), "-": () => zoom(1.25, middle), "0": () => look(...extent),
    ArrowLeft: () => look(view[0] - by, view[1] - by), ArrowRight: () => look(view[0] + by, view[1] + by) }[event.key];
  if (act) { act(); event.preventDefault(); }
});
function zoom(factor, about) { look(about + (view[0] - about) * factor, about + (view[1] - about) * factor); }
function look(from, to) {
  const length = Math.min(to - from, extent[1] - extent[0]);
  const start = Math.max(extent[0], Math.min(from, extent[1] - length));
  view = [start, start + length];
  draw();
}

function addSliders() {
  const controls = document.getElementById("controls"), scale = { f: 1, i: 1, w: 1 };
  let latency = data.latency, changed = false;
  const show = () => {
    sumLatency = changed ? latency : null;
    times = changed ? replay(scale, latency) : measured;
    pointer = null; tip.style.display = "none";
    refresh(); look(...extent);
  };
  const slider = (text, value, most, step, name, set) => {
    const label = document.createElement("label"), input = document.createElement("input"), output = document.createElement("output");
    Object.assign(input, { type: "range", min: 0, max: most, step, value });
    output.textContent = name(value);
    input.addEventListener("input", () => { set(+input.value); output.textContent = name(+input.value); show(); });
    label.append(text, input, output); controls.append(label);
  };
  if (data.counts.length > 1)
    slider("micro-batches", chosen, data.counts.length - 1, 1, k => data.counts[k],
      k => { chosen = k; take(data.schedules[k]); });
  if (data.atomic) return;
  for (const [key, text] of [["f", "F"], ["i", "I"], ["w", "W"]])
    slider(text + " \u00d7", 1, 3, 0.05, x => x.toFixed(2), x => { scale[key] = x; changed = true; });
  const most = Math.max(2 * latency, data.longest);
  slider("latency", latency, most, most / 60, x => units(x), x => { latency = x; changed = true; });
  const reset = document.createElement("button");
  reset.textContent = "as simulated";
  reset.addEventListener("click", () => { controls.replaceChildren(); times = measured; sumLatency = null; refresh(); look(...extent); addSliders(); });
  controls.append(reset);
}

function addLegend() {
  const seen = new Set(data.ranks.flat().map(a => a[OP])), legend = document.getElementById("legend");
  const entry = (colour, word) => { legend.innerHTML += '<span class="box" style="background:' + colour + '"></span><span class="word">' + word + "</span>"; };
  for (const op of [...seen].sort((a, b) => a - b)) if (op < 5 || op > 8) entry(data.colours[op][0][0], NAMES[op]);
  entry("#e9e9ec", "idle");
  if (data.skips[chosen].length) entry(SKIP, "skip edge");
  data.colours[0].forEach((colour, c, all) => { if (all.length > 1) entry(colour[0], (data.replicas > 1 ? "replica " : "chunk ") + c); });
}

// Which line of the memory is which rank's; the mouse on a name brings its line out.
function addRanks() {
  const names = document.getElementById("ranks");
  if (highest > 0) names.append("memory held by");
  const show = chosen => { pointer = chosen; draw(); };
  for (let r = 0; r < data.ranks.length && highest > 0; ++r) {
    const name = document.createElement("span"), line = document.createElement("span");
    name.className = "rank"; line.className = "line"; line.style.background = data.lines[r];
    name.append(line, "rank " + r);
    name.addEventListener("mouseenter", () => show({ r, i: -1 }));
    name.addEventListener("mouseleave", () => show(null));
    names.append(name);
  }
}

refresh();
view = [...extent];
addLegend();
addRanks();
addSliders();
draw();
addEventListener("resize", draw);
const wanted = /hover=(\d+),(\d+)/.exec(location.hash);
if (wanted) {
  const [r, i] = [+wanted[1], +wanted[2]], box = canvas.getBoundingClientRect(), time = times[r][i];
  canvas.dispatchEvent(new MouseEvent("mousemove", { bubbles: true,
    clientX: box.left + xOf((time[0] + time[1]) / 2), clientY: box.top + yOf(r) + rowHeight / (data.ranks[r][i][9] === 2 ? 1.4 : 3) }));
}
