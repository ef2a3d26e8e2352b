// What the page draws of the times: figures, rows, bars of sums, skip edges, axis and memory.
#include "plan/draw/html_page.hpp"

namespace millrace::picture {

const char* const kPageDrawing = R"page(let curves, extent, highest, sums;
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

)page";

}  // namespace millrace::picture
